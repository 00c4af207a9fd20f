from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.cluster import config
from aorta.cluster.config import ClusterDir, ClusterError, ClusterSettings, Machine

FOLDER = ClusterDir(Path("/srv/c"))
MACHINE = Machine("box", "root", 8000, (22, 5))

SLURM_CONF = """\
# Written by `aorta cluster up`; every start replaces it.
ClusterName=aorta
SlurmctldHost=box(10.213.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/srv/c/run/munge.sock
StateSaveLocation=/srv/c/state
SlurmdSpoolDir=/srv/c/spool/%n
SlurmctldPidFile=/srv/c/run/slurmctld.pid
SlurmdPidFile=/srv/c/run/slurmd-%n.pid
SlurmdLogFile=/srv/c/logs/%n-steps.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=300
MessageTimeout=30
KillWait=30
MinJobAge=300
FirstJobId=77
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
EnforcePartLimits=ALL
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=10.213.0.1
AccountingStoragePort=26819
AccountingStoragePass=/srv/c/run/munge.sock
AccountingStorageEnforce=associations
NodeName=node1 NodeHostname=node1 NodeAddr=10.213.0.11 Port=26818 CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=node2 NodeHostname=node2 NodeAddr=10.213.0.12 Port=26818 CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 DefaultTime=30 State=UP
"""


def test_slurm_conf_with_namespaces() -> None:
    assert config.slurm_conf(FOLDER, ClusterSettings(nodes=2, netns=True), MACHINE, 77) == SLURM_CONF


def test_slurm_conf_without_namespaces_differs_only_in_addresses_and_ports() -> None:
    text = config.slurm_conf(FOLDER, ClusterSettings(nodes=2, netns=False), MACHINE, 77)
    changed = [line for line in text.splitlines() if line not in SLURM_CONF.splitlines()]
    node = "NodeHostname=box NodeAddr=127.0.0.1 Port={} CPUs=4 RealMemory=4000 State=UNKNOWN"
    assert changed == [
        "SlurmctldHost=box(127.0.0.1)",
        "AccountingStorageHost=127.0.0.1",
        f"NodeName=node1 {node.format(26821)}",
        f"NodeName=node2 {node.format(26822)}",
    ]


def test_a_later_cluster_goes_on_behind_the_job_ids_of_an_earlier_one() -> None:
    assert [config.first_job_id(now) for now in (5.9, 6.0, 65_999_999.0)] == [1 + 5, 1 + 6, 66_000_000]
    assert config.first_job_id(66_000_000.0) == 1


@given(st.floats(0, 2**40))
def test_first_job_ids_are_positive_and_below_what_slurm_allows(now_s: float) -> None:
    assert 1 <= config.first_job_id(now_s) < 67_043_328


@given(nodes=st.integers(1, config.MAX_NODES), netns=st.booleans())
def test_no_two_nodes_share_address_and_port(nodes: int, netns: bool) -> None:
    settings = ClusterSettings(nodes, netns)
    controller = settings.controller_address
    ends = {(settings.address(index), settings.port(index)) for index in range(1, nodes + 1)}
    taken = {(controller, config.CONTROLLER_PORT), (controller, config.ACCOUNTING_PORT)}
    assert len(ends | taken) == nodes + 2


def test_slurmdbd_conf() -> None:
    text = config.slurmdbd_conf(FOLDER, ClusterSettings(netns=False), MACHINE)
    assert text.splitlines()[1:] == [
        "DbdHost=box",
        "DbdAddr=127.0.0.1",
        "DbdPort=26819",
        "SlurmUser=root",
        "AuthType=auth/munge",
        "AuthInfo=socket=/srv/c/run/munge.sock",
        "PidFile=/srv/c/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm_acct_db",
    ]


def test_hosts_names_controller_and_every_node() -> None:
    assert config.hosts(ClusterSettings(nodes=2), MACHINE) == (
        "127.0.0.1 localhost\n::1 localhost\n10.213.0.1 box\n10.213.0.11 node1\n10.213.0.12 node2\n"
    )


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ((22, 5), None),
        ((23, 11), None),
        ((24, 5), "CgroupPlugin=disabled\n"),
        ((25, 5), "CgroupPlugin=disabled\n"),
    ],
)
def test_cgroups_are_switched_off_where_slurm_knows_how(version: tuple[int, int], text: str | None) -> None:
    assert config.cgroup_conf(Machine("box", "root", 1, version)) == text


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.5\n", (24, 11)), ("slurm 23.11", (23, 11))],
)
def test_version(text: str, version: tuple[int, int]) -> None:
    assert config.parse_version(text) == version


def test_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"printed no version: 'slurm-wlm'"):
        config.parse_version("slurm-wlm")


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 100 * 10**6), ("1gbit", 10**9), ("64kbit", 64_000), ("9bit", 9), (" 5Mbit ", 5 * 10**6)],
)
def test_rate(text: str, bits: int) -> None:
    assert config.parse_rate(text) == bits


@pytest.mark.parametrize("text", ["", "100", "0mbit", "1.5mbit", "-1mbit", "100mbps", "mbit", "1mbit x"])
def test_wrong_rates_are_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="expected a number and a unit"):
        config.parse_rate(text)


@pytest.mark.parametrize("nodes", [0, -1, config.MAX_NODES + 1])
def test_wrong_number_of_nodes_is_refused(nodes: int) -> None:
    with pytest.raises(ClusterError, match=f"--nodes {nodes}: expected 1 to 32"):
        ClusterSettings(nodes)


def test_a_rate_needs_namespaces() -> None:
    assert ClusterSettings(netns=True, rate_bit_s=1000).rate_bit_s == 1000
    with pytest.raises(ClusterError, match="--rate needs"):
        ClusterSettings(netns=False, rate_bit_s=1000)


@pytest.mark.parametrize(
    "path", ["relative", "/with space", "/with,comma", "/with#hash", "/with%n", "/ümlaut"]
)
def test_folders_that_slurm_conf_cannot_hold_are_refused(path: str) -> None:
    with pytest.raises(ClusterError, match="cluster folder"):
        ClusterDir(Path(path))


def test_folder_too_long_for_a_socket_is_refused_and_the_longest_is_not() -> None:
    longest = 100 - len("/run/mysql.sock")
    assert len(str(ClusterDir(Path("/" + "a" * (longest - 1))).mysql_socket)) == 100
    with pytest.raises(ClusterError, match="too long"):
        ClusterDir(Path("/" + "a" * longest))
