"""Why ranks are late: each cause from its measurement, and not determined without it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aorta.artefacts.replayed import LatenessTable, LateNode
from aorta.diagnosis.finding import NOT_DETERMINED
from aorta.diagnosis.model import Modelled
from aorta.diagnosis.rank import RankCosts
from aorta.metrics.collector_pauses import Pauses
from aorta.metrics.node_load import Throttling
from tests.support.findings import IDLE, caused, changed, code, context, finding

WAITS: dict[str, Any] = {"waits_for_compute_ms": 20.0, "waits_for_host_ms": 5.0, "step_ms": 100.0}


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        (Throttling(0.6, 0.0, 10), Throttling(0.0, 0.0, 10), "thermal_throttling"),
        (Throttling(0.0, 0.6, 10), Throttling(0.0, 0.0, 10), "power_throttling"),
        (Throttling(0.4, 0.4, 10), Throttling(0.0, 0.0, 10), "compute"),
        (Throttling(0.0, 0.9, 10), Throttling(0.0, 0.9, 10), "compute"),
    ],
)
def test_a_gpu_that_alone_is_slowed_down_is_throttled(
    mine: Throttling, others: Throttling, expected: str
) -> None:
    seen = context(throttling={0: others, 1: mine})
    assert code(finding("straggler", [1], **WAITS), seen) == expected


@pytest.mark.parametrize(
    ("clock", "expected", "words"),
    [
        # 11 % of 100 ms explain more than half of the 20 ms that others wait, 9 % less; and 0 nothing.
        (1780.0, "power_throttling", "its clock is 11 % lower"),
        (1820.0, "compute", "at 91 % of the others' clock"),
        (2000.0, "compute", "at 100 % of the others' clock"),
    ],
)
def test_throttling_is_the_cause_if_the_clock_explains_the_lateness(
    clock: float, expected: str, words: str
) -> None:
    clocks = {0: Throttling(0, 0.0, 10, 2000.0), 1: Throttling(0, 0.9, 10, clock)}
    found = caused(finding("straggler", [1], **WAITS), context(throttling=clocks))
    assert found.sub_cause == expected
    assert words in (found.sub_cause_text or "")


def test_the_clock_of_a_rank_that_its_host_makes_late_says_nothing_of_the_others() -> None:
    throttled = {
        0: Throttling(0, 0.0, 10, 2000.0),
        1: Throttling(0, 0.9, 10, 1960.0),
        2: Throttling(0, 0.0, 10, 500.0),  # idle, for its host
    }
    waits = {**WAITS, "ranks_late_by_host": [2]}
    found = caused(finding("straggler", [1, 2], **waits), context(throttling=throttled))
    assert found.sub_cause == "compute"
    assert "compute takes longer on rank 1, at 98 % of the others' clock" in (found.sub_cause_text or "")


def test_a_host_that_is_late_is_not_late_by_its_gpus_clock() -> None:
    clocks = {0: Throttling(0, 0.0, 10, 2000.0), 1: Throttling(0, 0.9, 10, 500.0)}
    waits = {**WAITS, "waits_for_host_ms": 21.0}
    assert code(finding("straggler", [1], **waits), context(throttling=clocks)) == "host_work"


def test_load_of_others_on_the_late_node_alone_is_a_noisy_neighbour() -> None:
    # 4 CPUs half busy are 200, of which the job has 50.
    noisy = context(
        loads={"node0": IDLE, "node1": replace(IDLE, cpu_pct=50.0)},
        cpus_machine={"node0": 1, "node1": 4},
    )
    found = caused(finding("straggler", [1], **WAITS), noisy)
    assert found.sub_cause == "noisy_neighbour"
    assert found.evidence["foreign_cpu_pct"] == pytest.approx(150)
    assert (
        code(finding("straggler", [1], **WAITS), changed(noisy, cpus_machine={"node0": 4, "node1": 4}))
        == "compute"
    )
    assert code(finding("straggler", [1], **WAITS), changed(noisy, cpus_machine={})) == "compute"


def test_a_slow_node_host_work_and_turns() -> None:
    table = LatenessTable(
        steps=20,
        threshold_ms=10.0,
        ranks=[],
        nodes=[LateNode(host="node1", ranks=[2, 3], late_ms=20.0)],
        scope="node",
    )
    node = context(model=Modelled(None, "none", table, {}))
    assert code(finding("straggler", [2, 3], **WAITS), node) == "slow_node"
    host = finding("straggler", [1], waits_for_compute_ms=1.0, waits_for_host_ms=5.0, step_ms=100.0)
    assert code(host, context()) == "host_work"
    assert code(finding("straggler", **WAITS), context()) == NOT_DETERMINED
    shared = context(cores_shared="4 ranks share 2 CPUs")
    assert code(finding("straggler", **WAITS), shared) == "shared_cpus"


@pytest.mark.parametrize(("ranks", "said"), [([1], "rank 1 spends"), ([1, 2], "ranks 1, 2 spend")])
def test_what_ranks_do_agrees_with_their_number(ranks: list[int], said: str) -> None:
    late = finding("straggler", ranks, waits_for_compute_ms=1.0, waits_for_host_ms=9.0)
    text = caused(late, context()).sub_cause_text
    assert text == f"{said} more time on host work, outside of compute and data loading"


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        ({1: 12.0}, "gc_pauses"),
        ({1: 12.0, 0: 3.0}, "host_work"),  # 9 more than the others, of 20 that they wait
        ({1: 9.0}, "host_work"),
        ({0: 12.0}, "host_work"),
        ({}, "host_work"),
    ],
)
def test_a_collector_that_pauses_the_late_rank_alone_is_named(
    pauses: dict[int, float], expected: str
) -> None:
    late = finding("straggler", [1], waits_for_compute_ms=5.0, waits_for_host_ms=20.0, step_ms=100.0)
    found = caused(late, context(collector={rank: Pauses(ms, 0.0) for rank, ms in pauses.items()}))
    assert found.sub_cause == expected
    if expected == "gc_pauses":
        assert found.sub_cause_text is not None
        assert "pauses rank 1 for 12.0 ms per step, the other ranks for 0.0 ms" in found.sub_cause_text
        assert (found.evidence["collector_ms"], found.evidence["collector_ms_others"]) == (12.0, 0.0)


def test_pauses_within_the_forward_pass_of_a_cpu_are_named_too() -> None:
    late = finding("straggler", [1], **WAITS)
    assert code(late, context(collector={1: Pauses(11.0, 0.0)})) == "gc_pauses"
    assert code(late, context(collector={1: Pauses(9.0, 0.0)})) == "compute"


@pytest.mark.parametrize(
    ("loads", "expected", "times"),
    [
        ({0: 100.0, 1: 260.0, 2: 100.0}, "uneven_experts", 2.6),
        ({0: 100.0, 1: 125.0, 2: 100.0}, "compute", None),  # below 1.3 times
        ({0: 100.0, 1: 100.0, 2: 260.0}, "compute", None),  # another rank's expert is the busy one
        ({}, "compute", None),
    ],
)
def test_an_expert_that_gets_most_tokens_is_the_cause(
    loads: dict[int, float], expected: str, times: float | None
) -> None:
    late = finding("straggler", [1], **WAITS)
    found = caused(late, changed(context(), exchanged=loads))
    assert found.sub_cause == expected
    assert found.evidence.get("exchanged_times") == times


def takes(rank: int, *, compute: float = 50.0, host: float = 5.0, work: float | None = None) -> RankCosts:
    return RankCosts(
        rank=rank,
        step_ms=100.0,
        compute_ms=compute,
        data_wait_ms=0.0,
        host_ms=host,
        copy_ms=0.0,
        exposed_comm_ms=100.0 - compute - host,
        charged_ms={},
        host_work_ms=work,
    )


def test_a_rank_that_computes_longer_is_put_beside_the_others_in_numbers() -> None:
    costs = [takes(0, compute=51.9), takes(1, compute=52.2), takes(2, compute=67.62)]
    late, seen = finding("straggler", [2], **WAITS), changed(context(), costs=costs)
    assert caused(late, seen).sub_cause_text == (
        "compute takes 67.6 ms per step on rank 2, on the others 51.9 to 52.2 ms"
    )
    # A rank that does not compute for longer than another one has no such numbers.
    equal = changed(seen, costs=[takes(0, compute=70.0), *costs[1:]])
    assert caused(late, equal).sub_cause_text == "compute takes longer on rank 2"


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        (
            [takes(0, host=80.0), takes(1, host=5.0)],
            "80.0 ms per step on host work, {}; the other rank 5.0 ms",
        ),
        # Behind waits in collectives the GPU does not show the host's work, which traces tell.
        (
            [takes(0, host=5.0, work=80.0), takes(1, host=5.0, work=60.0)],
            "80.0 ms per step on host work, {}; the other rank 60.0 ms",
        ),
        ([takes(0, host=5.0), takes(1, host=5.0)], "more time on host work, {}"),
    ],
)
def test_a_host_that_works_longer_is_put_beside_the_others_in_numbers(
    costs: list[RankCosts], said: str
) -> None:
    late = finding("straggler", [0], waits_for_compute_ms=1.0, waits_for_host_ms=9.0)
    text = caused(late, changed(context(), costs=costs)).sub_cause_text
    assert text == "rank 0 spends " + said.format("outside of compute and data loading")
