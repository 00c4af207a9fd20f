"""The cluster itself, for real. Other jobs may run on it at the same time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aorta.cluster import cluster as clusters

pytestmark = pytest.mark.slurm


def lines(text: str) -> list[str]:
    """`0: node1` of `srun --label`, in the order of tasks, without the label."""
    return [line.partition(": ")[2] for line in sorted(text.splitlines())]


def test_every_node_is_up(cluster) -> None:
    now = clusters.status(cluster.folder)
    assert now.up
    assert [node.name for node in now.nodes] == cluster.settings.names


def test_a_task_on_each_node_and_its_accounting(cluster) -> None:
    nodes = cluster.settings.nodes
    print_id = 'echo "$SLURM_JOB_ID $SLURMD_NODENAME $(hostname)"'
    answers = [
        line.split() for line in lines(cluster.run(["srun", f"-N{nodes}", "-l", "sh", "-c", print_id]))
    ]
    assert [name for _, name, _ in answers] == cluster.settings.names
    if cluster.settings.netns:
        assert [host for _, _, host in answers] == cluster.settings.names
    (job,) = {number for number, _, _ in answers}
    query = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "State,AllocNodes,Account,ExitCode"]
    deadline = time.monotonic() + 60
    while not (seen := cluster.run(query).strip()).startswith("COMPLETED") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert seen == f"COMPLETED|{nodes}|aorta|0:0"


def test_nodes_find_each_other_by_name(cluster) -> None:
    if not cluster.settings.netns:
        pytest.skip(
            "nodes share this machine's address and name; `aorta cluster up --netns` gives them their own"
        )
    settings = cluster.settings
    look = "getent hosts node1 | cut -d' ' -f1; ip -4 -o addr show eth0 | sed 's/.*inet //; s,/.*,,'"
    for index, name in enumerate(settings.names, start=1):
        answer = cluster.run(["srun", "-N1", "-w", name, "sh", "-c", look])
        assert answer.split() == [settings.address(1), settings.address(index)]


def test_what_monitors_read_is_there_on_every_node(cluster) -> None:
    nodes = cluster.settings.nodes
    answers = lines(cluster.run(["srun", f"-N{nodes}", "-l", "sh", "-c", "ls /sys/fs/cgroup | xargs"]))
    here = sorted(entry.name for entry in Path("/sys/fs/cgroup").iterdir())
    assert [sorted(answer.split()) for answer in answers] == [here] * nodes


def test_a_job_sees_nothing_of_the_daemons_environment(cluster) -> None:
    names = cluster.run(["srun", "-N1", "--export=NONE", "/usr/bin/env"])
    assert "MYSQL_UNIX_PORT" not in names
    assert f"SLURM_CONF={cluster.folder.slurm_conf}" in names


def test_an_unknown_account_is_refused(cluster) -> None:
    with pytest.raises(AssertionError, match="Invalid account"):
        cluster.run(["srun", "-N1", "-A", "nobody-pays", "true"])


def test_more_nodes_than_there_are_is_refused(cluster) -> None:
    with pytest.raises(AssertionError, match=r"(?i)node count|not available"):
        cluster.run(["srun", f"-N{cluster.settings.nodes + 1}", "true"])
