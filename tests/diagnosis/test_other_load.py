"""Load of other programs: said first, doubted, and no rank is blamed for what it explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.policy import Policy
from aorta.metrics.node_load import NodeLoad, crowded, on_one_machine
from tests.support.findings import context, finding

LOAD = NodeLoad(cpu_pct=100.0, job_cpu_pct=150.0, cpus_usable=4.0, read_mb_per_s=None)
WAITS = {"waits_for_compute_ms": 20.0, "waits_for_host_ms": 1.0}


@pytest.mark.parametrize(
    ("busy", "job", "used"),
    [(100.0, 150.0, 2.5), (100.0, 400.0, None), (60.0, 50.0, None), (None, 50.0, None), (100.0, None, None)],
)
def test_others_count_where_hardly_a_cpu_was_free(
    busy: float | None, job: float | None, used: float | None
) -> None:
    """Of 4 CPUs all busy are 400; 400 - 150 of the job leave 2.5 CPUs to others."""
    found = crowded({"n": replace(LOAD, cpu_pct=busy, job_cpu_pct=job)}, {"n": 4})
    assert found == ({} if used is None else {"n": used})


@pytest.mark.parametrize(
    ("cuda", "waits", "free", "explained"),
    [
        (False, WAITS, False, True),
        (True, WAITS, False, False),  # no CPU load makes kernels longer
        (True, {"waits_for_compute_ms": 1.0, "waits_for_host_ms": 20.0}, False, True),
        (False, WAITS, True, False),
    ],
)
def test_a_load_on_all_nodes_explains_who_is_late(
    cuda: bool, waits: dict[str, float], free: bool, explained: bool
) -> None:
    load = replace(LOAD, cpu_pct=40.0 if free else 100.0)
    hosts = {0: "node0", 1: "node1"}
    seen = context(
        loads={"node0": load, "node1": load}, cpus_machine={"node0": 4, "node1": 4}, cuda=cuda, hosts=hosts
    )
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    why = check(finding("straggler", [1], **waits), seen, Policy.of(None))
    assert (why is not None and "other programs used" in why) == explained


def test_a_load_on_the_late_node_alone_is_its_neighbour() -> None:
    loads = {"node0": replace(LOAD, cpu_pct=30.0), "node1": LOAD}
    hosts = {0: "node0", 1: "node1"}
    seen = context(loads=loads, cpus_machine={"node0": 4, "node1": 4}, cuda=False, hosts=hosts)
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    assert check(finding("straggler", [1], **WAITS), seen, Policy.of(None)) is None


def test_nodes_of_one_machine_share_what_the_job_uses() -> None:
    """Two nodes of one machine with 4 CPUs use 1.5 and 1.0; all are busy, so that others use 1.5."""
    loads = {"n1": LOAD, "n2": replace(LOAD, job_cpu_pct=100.0)}
    together = on_one_machine(loads)
    assert crowded(together, {"n1": 4, "n2": 4}) == {"n1": 1.5, "n2": 1.5}
    unknown = on_one_machine({"n1": LOAD, "n2": replace(LOAD, job_cpu_pct=None)})
    assert crowded(unknown, {"n1": 4, "n2": 4}) == {}
