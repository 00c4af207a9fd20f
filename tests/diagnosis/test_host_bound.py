"""Hosts that all are slow: what they make wait is their symptom, unless one rank is the late one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from aorta.artefacts.measured import BreakdownTable, RankBreakdown, Utilization
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.host_time import idles_for_launches
from aorta.diagnosis.observation import Observation, ObservedHost, ObservedJob, ObservedSteps
from aorta.diagnosis.rank import RankCosts
from aorta.diagnosis.symptoms import explain
from aorta.metrics.charges import Cause, Charge
from aorta.metrics.launches import Launches
from aorta.metrics.trace_capture import HostIdle
from tests.support.findings import TRACES, changed, measure

STEP = 100.0


Waits = Mapping[int, Mapping[Charge, float]]


def context(
    hosts: Sequence[float],
    waits: Waits | None = None,
    idle: HostIdle | None = None,
    works: Sequence[float | None] | None = None,
) -> Observation:
    """Ranks of 100 ms a step: the host's part, waits by charge, the rest compute; what hosts work; the policy
    of traces.
    """
    charged = [dict((waits or {}).get(rank, {})) for rank in range(len(hosts))]
    rows, costs = [], []
    for rank, host in enumerate(hosts):
        exposed = sum(charged[rank].values())
        compute = STEP - host - exposed
        rows.append(
            RankBreakdown(
                rank=rank,
                host=None,
                steps=5,
                step_ms=STEP,
                compute_ms=compute,
                exposed_comm_ms=exposed,
                exposed_copy_ms=0.0,
                data_wait_ms=0.0,
                host_ms=host,
                comm_ms=exposed,
                overlap_ratio=None,
            )
        )
        work = works[rank] if works else None
        costs.append(RankCosts(rank, STEP, compute, 0.0, host, 0.0, exposed, charged[rank], work))
    return Observation(
        job=ObservedJob(cuda=True, world_size=len(hosts)),
        steps=ObservedSteps(breakdown=BreakdownTable(steps=5, per_rank=rows), costs=costs),
        host=ObservedHost(idle=idle),
    )


def explained(made: Observation) -> dict[str, str | None]:
    """Kinds found, in order, with what each is a symptom of."""
    answers = {kind: measure(kind, made) for kind in FINDINGS}
    found = explain(
        {kind: item.finding for kind, item in answers.items() if item.finding is not None}, made, TRACES
    )
    return {finding.kind: finding.symptom_of for finding in found}


def test_the_share_is_the_lower_median_of_the_ranks() -> None:
    for hosts, value, fired in (
        ([40.0, 0.0], 0.0, False),
        ([40.0, 35.0], 35.0, True),
        ([90.0, 20, 31], 31.0, True),
    ):
        measured, finding = measure("host_bound", context(hosts))
        assert (measured.value, measured.fired, finding is not None) == (value, fired, fired)


def test_waits_for_hosts_that_are_slow_by_turns_are_symptoms() -> None:
    by_turns: Waits = {0: {(1, "host"): 25.0}, 1: {(0, "host"): 25.0}}
    assert explained(context([50.0, 50.0], by_turns)) == {
        "host_bound": None,
        "straggler": "host_bound",
        "communication": "host_bound",
    }


def test_traced_waits_for_hosts_that_are_slow_by_turns_are_the_hosts_part() -> None:
    idle = HostIdle(short_gaps_ms=20.0, long_gaps_ms=0.0, sync_ms=0.0, launches=900.0, empty_share=0.9)
    by_turns: Waits = {0: {(1, "host"): 25.0}, 1: {(0, "host"): 25.0}}
    measured, finding = measure("host_bound", context([20.0, 20.0], by_turns, idle))
    assert (measured.value, measured.fired) == (20.0 + 25.0, True)
    assert finding is not None
    assert finding.evidence["waits_for_hosts_by_turns_ms"] == 25.0
    assert explained(context([20.0, 20.0], by_turns, idle))["straggler"] == "host_bound"
    one_rank: Waits = {0: {(1, "host"): 25.0}}
    assert measure("host_bound", context([20.0, 45.0], one_rank, idle))[0].value == 20.0
    assert measure("host_bound", context([20.0, 20.0], by_turns))[0].value == 20.0


def test_one_rank_that_the_others_wait_for_stays_a_cause() -> None:
    late: Waits = {0: {(1, "host"): 25.0}}
    assert explained(context([40.0, 60.0], late)) == {"host_bound": None, "straggler": None}


LAST = 2
HELD: Waits = {rank: {(LAST, "host"): 80.0} for rank in (0, 1)}
"""Of ranks 0 to 2 the host of the last one lets its GPU idle for 90 of 100 ms; two wait for it for 80."""


def test_what_all_hosts_need_is_the_hosts_part_behind_waits_for_the_last_one() -> None:
    # Hosts that work 95 of 100 ms leave 5: so much could be gained without rank 2, and 75 of 80 could not.
    made = context([2.0, 2.0, 90.0], HELD, works=[95.0, 95.0, 99.0])
    measured, item = measure("host_bound", made)
    assert (measured.value, measured.fired) == (2.0 + 75.0, True)
    assert item is not None
    assert item.evidence["waits_that_own_hosts_take_anyway_ms"] == 2 * 75.0 / 3
    assert item.evidence["host_ms"] == pytest.approx((77 + 77 + 90) / 3)
    assert "host work is about equally slow on all ranks" in item.cause
    late, none = measure("straggler", made)
    assert (late.value, late.fired, none) == (5.0, False, None)
    assert late.reason is not None
    assert "ranks wait for each other 80.0 % of the step, but all except 5.00 % would remain" in late.reason
    assert explained(made) == {"host_bound": None, "communication": "host_bound"}


@pytest.mark.parametrize(("work", "value"), [(None, 80.0), (0.0, 80.0), (20.0, 80.0), (60.0, 40.0)])
def test_a_rank_that_is_later_than_the_others_own_hosts_stays_a_straggler(
    work: float | None, value: float
) -> None:
    """Hosts of which nothing is known, that work nothing, that are done in 20 ms, and that need 60 of 100."""
    late, item = measure("straggler", context([2.0, 2.0, 90.0], HELD, works=[work, work, 90.0]))
    assert (late.value, late.fired) == (value, True)
    assert item is not None
    assert item.ranks == [LAST]
    assert ("waits_that_own_hosts_take_anyway_ms" in item.evidence) is (work == 60.0)


@pytest.mark.parametrize(
    ("works", "cause", "words"),
    [
        ([95.0, 95.0, 99.0], "host", "the host prepares work or waits"),
        ([10.0, 10.0, 99.0], "host", "ranks wait for slower ones"),
        ([10.0, 10.0, 99.0], "data_loading", "data is loaded"),
        ([10.0, 10.0, 99.0], "communication", "data is exchanged between ranks"),
    ],
)
def test_idle_time_is_of_what_makes_ranks_wait(works: Sequence[float], cause: Cause, words: str) -> None:
    held: Waits = {rank: {(LAST, cause): 80.0} for rank in (0, 1)}
    made = changed(counted(None), costs=context([2.0, 2.0, 40.0], held, works=works).steps.costs)
    use = made.monitored.utilization
    assert use is not None
    use = msgspec.structs.replace(use, effective_gpu_util_pct=10.0)
    _, item = measure("gpu_underutilization", changed(made, utilization=use))
    assert item is not None
    assert item.cause.endswith(words)


def test_waits_for_compute_are_no_loss_either_while_the_own_host_works() -> None:
    held: Waits = {0: {(1, "compute"): 50.0}}
    made = context([0.0, 0.0], held, works=[97.0, 97.0])
    assert measure("straggler", made)[0].value == 3.0
    assert measure("straggler", context([0.0, 0.0], held))[0].value == 50.0


def test_nothing_below_its_threshold_is_explained() -> None:
    few: Waits = {0: {(1, "host"): 8.0}}
    assert measure("straggler", context([2.0, 10.0], few, works=[99.0, 99.0]))[0].reason is None


@pytest.mark.parametrize(
    ("idle", "launches"),
    [
        (HostIdle(40.0, 30.0, 0.0, 600.0, 0.1), True),  # most of it in short gaps
        (HostIdle(30.0, 40.0, 0.0, 600.0, 0.95), True),  # no launch ever comes ahead of the GPU
        (HostIdle(30.0, 40.0, 0.0, 600.0, 0.85), False),
        (HostIdle(30.0, 40.0, 0.0, 600.0, None), False),
        (HostIdle(30.0, 40.0, 0.0, 600.0, 0.0), False),
        (HostIdle(30.0, 40.0, 40.0, 600.0, 0.95), False),  # it synchronises
        (HostIdle(10.0, 60.0, 0.0, 600.0, 0.95), False),  # one long pause
        (HostIdle(0.0, 0.0, 0.0, 600.0, 1.0), False),
    ],
)
def test_launches_that_never_come_ahead_are_what_the_gpu_waits_for(idle: HostIdle, launches: bool) -> None:
    assert idles_for_launches(idle) is launches


def test_waits_for_compute_that_changes_from_step_to_step_stay_a_cause() -> None:
    by_turns: Waits = {0: {(1, "compute"): 25.0}, 1: {(0, "compute"): 25.0}}
    assert explained(context([50.0, 50.0], by_turns)) == {
        "host_bound": None,
        "straggler": None,
        "communication": "straggler",
    }


@pytest.mark.parametrize(
    ("idle", "words"),
    [
        (HostIdle(30.0, 10.0, 0.0, 900.0, 0.9), "launch-bound"),
        (HostIdle(5.0, 35.0, 30.0, 90.0, 0.9), "synchronising calls"),
        (HostIdle(5.0, 35.0, 0.0, 90.0, 0.9), "between kernels, the GPU waits for host work"),
        (None, "between kernels, the GPU waits for host work"),
    ],
)
def test_the_cause_by_where_the_gpu_idles(idle: HostIdle | None, words: str) -> None:
    _, finding = measure("host_bound", context([40.0, 40.0], idle=idle))
    assert finding is not None
    assert words in finding.cause


def counted(busy: float | None, hosts: Sequence[float] = (10.0, 10.0), **changes: Any) -> Observation:
    """With the driver's counter, by records of 20 steps that satisfy the usual policy."""
    made = context(hosts)
    table = msgspec.structs.replace(made.steps.breakdown, steps=20)
    use = Utilization(
        gpu_util_pct=busy,
        effective_gpu_util_pct=90.0,
        gpu_memory_used_pct=None,
        gpu_power_w=None,
        cpu_pct=None,
        job_cpu_pct=None,
        host_memory_used_pct=None,
        samples=40,
    )
    return changed(made, breakdown=table, utilization=use, driver_busy_pct=busy, **changes)


@pytest.mark.parametrize(("busy", "value"), [(None, 10.0), (90.0, 10.0), (25.0, 75.0), (0.0, 100.0)])
def test_time_without_any_kernel_beyond_what_lies_outside_of_windows_is_the_hosts(
    busy: float | None, value: float
) -> None:
    # Of 100 ms, 10 are the host's outside of compute's windows: with 25 % busy, 75 - 10 lie inside of them.
    measured, finding = measure("host_bound", counted(busy))
    assert measured.value == pytest.approx(value)
    assert (finding is not None) == measured.fired == (value > 30)
    if finding is not None:
        assert finding.evidence["idle_in_compute_windows_ms"] == pytest.approx(value - 10)
        assert finding.evidence["driver_utilization_pct"] == busy


def test_kernels_that_were_recorded_tell_more_than_the_counter() -> None:
    launches = Launches(kernels=100.0, kernels_ms=85.0, windows_ms=90.0)
    made = counted(25.0, launches=launches)
    assert measure("host_bound", made)[0].value == pytest.approx(10 + 5)


def test_of_two_upper_bounds_of_utilisation_the_lower_one_counts() -> None:
    low, high, none = (measure("gpu_underutilization", counted(busy))[0] for busy in (25.0, 99.0, None))
    assert (low.value, low.fired, low.reason) == (25.0, True, "an upper bound: the driver's counter")
    assert (high.value, high.fired, high.reason) == (90.0, False, None)
    assert (none.value, none.fired) == (90.0, False)
    assert none.reason == "an upper bound: compute windows include the gaps between kernels"
    zero = measure("gpu_underutilization", counted(0.0))[0]
    assert (zero.value, zero.fired) == (0.0, True)
