"""What the cluster says about itself."""

import pytest

from aorta.errors import SchedulerError
from aorta.launch.site import (
    SlurmNode,
    ask_accounts,
    ask_nodes_here,
    ask_partitions,
    ask_site,
    count_gpus,
    local_addresses,
)
from aorta.launch.tools import ToolAnswer
from tests.support.slurm import MISSING, FakeSlurm, cluster


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:4(S:0,1),gpu:h100:2", 4 + 2),
        ("gpu:1g.5gb:7", 7),
        ("nvme:2", 0),
        ("(null)", 0),
        ("", 0),
        ("mps:100,gpu:2", 2),
    ],
)
def test_gpus_in_generic_resources(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_partitions() -> None:
    found = ask_partitions(cluster())
    assert found["debug"].default
    assert found["debug"].limit_s == 3600
    assert [node.name for node in found["debug"].nodes] == ["node1", "node2", "node3", "node4"]
    assert found["gpu"].nodes == (SlurmNode("g1", 64, 4), SlurmNode("g2", 64, 4))
    assert found["gpu"].limit_s is None
    assert not found["gpu"].default


def test_a_partition_of_unlike_nodes_has_them_all() -> None:
    rows = "mix|up|infinite|8|(null)|c1\nmix|up|infinite|64|gpu:2|g1\n"
    found = ask_partitions(cluster(sinfo=ToolAnswer(0, rows)))
    assert found["mix"].nodes == (SlurmNode("c1", 8, 0), SlurmNode("g1", 64, 2))
    assert found["mix"].gpus == 2


@pytest.mark.parametrize("answer", [MISSING, ToolAnswer(1, err="Unable to contact slurm controller")])
def test_without_sinfo_there_is_no_cluster(answer: ToolAnswer) -> None:
    with pytest.raises(SchedulerError, match="cannot be listed"):
        ask_partitions(cluster(sinfo=answer))


def test_an_answer_that_is_no_table() -> None:
    with pytest.raises(SchedulerError, match="welcome"):
        ask_partitions(cluster(sinfo=ToolAnswer(0, "welcome\n")))


@pytest.mark.parametrize(
    ("answer", "accounts"),
    [
        (ToolAnswer(0, "Lab\nother\n"), frozenset({"lab", "other"})),
        (ToolAnswer(0, ""), None),
        (ToolAnswer(1, err="You are not running a supported accounting_storage plugin"), None),
        (MISSING, None),
    ],
)
def test_accounts(answer: ToolAnswer, accounts: frozenset[str] | None) -> None:
    assert ask_accounts("me", cluster(sacctmgr=answer)) == accounts


def test_nodes_with_our_address_are_here_and_others_are_not() -> None:
    rows = "NodeName=a NodeAddr=127.0.0.1 X=1\nNodeName=b NodeAddr=203.0.113.77 X=1\n"
    fake = FakeSlurm({"scontrol": ToolAnswer(0, rows)})
    assert ask_nodes_here(fake) == {"a"}


def test_a_controller_that_does_not_answer_has_no_node_here() -> None:
    assert ask_nodes_here(FakeSlurm({"scontrol": MISSING})) == frozenset()


def test_addresses_of_a_namespace() -> None:
    table = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.0.0
        /24 link UNICAST
     |-- 10.0.0.11
        /32 host LOCAL
     |-- 10.0.0.255
        /32 link BROADCAST
"""
    assert local_addresses(table) == {"10.0.0.11"}


def test_all_of_it() -> None:
    site = ask_site("me", cluster())
    assert site.default_partition is not None
    assert site.default_partition.name == "debug"
    assert site.accounts == {"lab"}
    assert site.nodes_here == {"node1", "node2", "node3", "node4"}
