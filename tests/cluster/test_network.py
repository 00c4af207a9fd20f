from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.cluster import network
from aorta.cluster.config import MAX_NODES, ClusterDir, ClusterSettings

FOLDER = ClusterDir(Path("/srv/c"))


def commands(settings: ClusterSettings) -> list[str]:
    return [" ".join(argv) for argv in network.create_argvs(FOLDER, settings)]


def test_one_node() -> None:
    assert commands(ClusterSettings(nodes=1)) == [
        "ip link add aorta-br type bridge",
        "ip link set dev aorta-br alias /srv/c",
        "ip addr add 10.213.0.1/24 dev aorta-br",
        "ip link set dev aorta-br up",
        "ip netns add aorta-node1",
        "ip link add aorta-n1 type veth peer name eth0 netns aorta-node1",
        "ip link set dev aorta-n1 master aorta-br up",
        "ip -n aorta-node1 addr add 10.213.0.11/24 dev eth0",
        "ip -n aorta-node1 link set dev lo up",
        "ip -n aorta-node1 link set dev eth0 up",
    ]


def test_a_rate_limits_both_directions_of_every_node_and_changes_nothing_else() -> None:
    plain, limited = (
        commands(ClusterSettings(nodes=3)),
        commands(ClusterSettings(nodes=3, rate_bit_s=100 * 10**6)),
    )
    added = [line for line in limited if line not in plain]
    limit = "root tbf rate 100000000bit burst 125000b latency 50ms"
    expected = []
    for index in (1, 2, 3):
        expected.append(f"tc qdisc add dev aorta-n{index} {limit}")
        expected.append(f"tc -n aorta-node{index} qdisc add dev eth0 {limit}")
    assert added == expected
    assert [line for line in limited if line in plain] == plain


def test_one_link_is_limited_both_ways_and_set_free_again() -> None:
    said = [" ".join(argv) for argv in network.relimit_argvs(4, 10**7)]
    limit = "root tbf rate 10000000bit burst 16384b latency 50ms"
    assert said == [
        f"tc qdisc replace dev aorta-n4 {limit}",
        f"tc -n aorta-node4 qdisc replace dev eth0 {limit}",
    ]
    assert [" ".join(argv) for argv in network.relimit_argvs(4, None)] == [
        "tc qdisc del dev aorta-n4 root",
        "tc -n aorta-node4 qdisc del dev eth0 root",
    ]


@given(nodes=st.integers(1, MAX_NODES))
def test_interface_names_fit_the_kernel_and_differ(nodes: int) -> None:
    argvs = network.create_argvs(FOLDER, ClusterSettings(nodes))
    names = [argv[3] for argv in argvs if argv[:3] == ["ip", "link", "add"]]
    assert len(set(names)) == nodes + 1
    assert max(map(len, names)) <= 15


def test_burst_is_10_ms_of_the_rate_and_at_least_16_kib() -> None:
    assert network.limit_arguments(10**9)[5] == f"{10**9 // 8 // 100}b"
    assert network.limit_arguments(10**6)[5] == f"{16 * 1024}b"


def test_entering_a_node_gives_values_as_arguments_only() -> None:
    argv = network.enter_argv(FOLDER, "node2")
    script = argv.index("-c") + 1
    assert argv[:2] == ["nsenter", "--net=/run/netns/aorta-node2"]
    assert argv[script + 2 :] == ["node2", "/srv/c/hosts"]
    assert "node2" not in argv[script]
    assert "/srv/c" not in argv[script]


def two_nodes(tmp_path: Path, rate: str) -> dict[str, Any]:
    """What two nodes in namespaces of their own see, and how long some bytes take between them."""
    script = Path(__file__).with_name("two_nodes.py")
    apart = ["unshare", "--net", "--mount", "--uts", "--propagation", "private"]
    argv = [*apart, sys.executable, str(script), str(tmp_path / "c"), rate]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
def test_real_nodes_have_names_and_addresses_and_a_rate_slows_them(tmp_path: Path) -> None:
    if (reason := network.unusable()) is not None:
        pytest.skip(f"no network namespaces: {reason}")
    limited, free = two_nodes(tmp_path, "16mbit"), two_nodes(tmp_path, "none")
    for seen in (limited, free):
        assert seen["hostname"] == "node2"
        assert seen["node1"] == "10.213.0.11"
        assert seen["cgroup"] == sorted(entry.name for entry in Path("/sys/fs/cgroup").iterdir())
        assert seen["left_behind"] == []
    # A bucket of 20 kB of burst lets nothing through faster than this, however busy the machine is.
    burst_bytes = 16 * 10**6 // 8 // 100
    assert limited["seconds"] > (limited["bytes"] - 2 * burst_bytes) * 8 / (16 * 10**6) * 0.9
    assert free["seconds"] < limited["seconds"]
