"""Ranks joined pair by pair: which link is limited, and that a real one is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aorta.cluster import network, pairs


def test_one_link_of_three_ranks_is_limited_on_both_sides() -> None:
    commands = [" ".join(argv) for argv in pairs.create_argvs("p-", 3, (2, 0), 8_000_000)]
    assert [line for line in commands if line.startswith("ip link add")] == [
        "ip link add to1 netns p-0 type veth peer name to0 netns p-1",
        "ip link add to2 netns p-0 type veth peer name to0 netns p-2",
        "ip link add to2 netns p-1 type veth peer name to1 netns p-2",
    ]
    limited = [line.split()[2:7] for line in commands if line.startswith("tc")]
    assert limited == [["p-0", "qdisc", "add", "dev", "to2"], ["p-2", "qdisc", "add", "dev", "to0"]]
    assert "ip -n p-2 addr add 10.214.0.3 peer 10.214.0.1 dev to0" in commands


@pytest.mark.skipif(network.unusable() is not None, reason=str(network.unusable()))
def test_the_namespaces_reach_each_other_and_end_with_the_context() -> None:
    with pairs.joined(2, (0, 1), 8_000_000) as prefix:
        names = [pairs.namespace(prefix, rank) for rank in (0, 1)]
        assert prefix.startswith(f"aorta-pair{os.getpid()}-")
        shown = subprocess.run(
            ["tc", "-n", names[0], "qdisc", "show", "dev", "to1"], capture_output=True, text=True, check=True
        )
        assert "tbf" in shown.stdout
        assert "8Mbit" in shown.stdout
        route = subprocess.run(
            ["ip", "-n", names[1], "route", "get", "10.214.0.1"], capture_output=True, text=True, check=True
        )
        assert "dev to0" in route.stdout
        assert "src 10.214.0.2" in route.stdout
    assert not [name for name in names if Path("/run/netns", name).exists()]
