"""Full memory: what it costs shows as host time and late ranks, which are then no causes of their own."""

from __future__ import annotations

import pytest

from aorta.artefacts.analysis import Analysis, DataQuality, Finding, Kind
from aorta.artefacts.measured import BreakdownTable, RankBreakdown
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import DecodedStep
from aorta.config.thresholds import Thresholds
from aorta.diagnosis.findings.memory_pressure import RETRIES, USED
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation, ObservedDevices, ObservedJob, ObservedSteps
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import RankCosts
from aorta.metrics.allocator import AllocatorUse, allocator_use
from aorta.metrics.charges import Charge
from aorta.metrics.steady import Steady
from tests.support.findings import RECORDS, changed, measure

QUALITY = DataQuality(
    ranks_expected=2, ranks_seen=2, sources=[], problems=[], nodes_expected=1, nodes_seen=1, steady_steps=20
)


def use(tensors: float, retries: float | None) -> AllocatorUse:
    """Of 10 GiB; a fifth of what is held is in no tensor."""
    return AllocatorUse(tensors, tensors / 0.8, 0.2, 10 << 30, retries)


def context(allocator: AllocatorUse | None, host_ms: float = 40.0, waits: float = 0.0) -> Observation:
    """Two ranks whose step of 100 ms has `host_ms` of the host; `waits` of rank 0 for the host of rank 1."""
    rows, costs = [], []
    for rank in range(2):
        lost = waits if rank == 0 else 0.0
        rows.append(
            RankBreakdown(
                rank=rank, host="node0", steps=20, step_ms=100.0, compute_ms=100.0 - host_ms - lost,
                exposed_comm_ms=lost, exposed_copy_ms=0.0, data_wait_ms=0.0, host_ms=host_ms,
                comm_ms=lost + 1, overlap_ratio=None,
            )
        )  # fmt: skip
        charged: dict[Charge, float] = {(1, "host"): lost} if lost else {}
        costs.append(RankCosts(rank, 100.0, 100.0 - host_ms - lost, 0.0, host_ms, 0.0, lost, charged))
    return Observation(
        job=ObservedJob(cuda=True, world_size=2, hosts={0: "node0", 1: "node0"}, cpus_usable=8),
        steps=ObservedSteps(breakdown=BreakdownTable(steps=20, per_rank=rows), costs=costs),
        monitored=ObservedDevices(allocator=allocator),
        quality=QUALITY,
    )


def concluded(seen: Observation, policy: Policy = RECORDS) -> Analysis:
    return judge(seen, policy)


def found(made: Analysis, kind: Kind) -> Finding:
    return next(item for item in made.findings if item.kind == kind)


# --- what the records tell ---------------------------------------------------------------------------------


def step(number: int, peak: int | None, held: int | None = None, retries: int | None = None) -> DecodedStep:
    return DecodedStep(
        job_id="7",
        host="h", attempt=0, rank=0, world_size=1, device="cuda:0", global_step=number, phase="steady",
        wall_start_ns=0, wall_end_ns=1, mono_start_ns=0, mono_end_ns=1, samples=1, timing="event_window",
        breakdown=None, memory_peak_bytes=peak, memory_total_bytes=200, memory_reserved_bytes=held,
        alloc_retries=retries,
    )  # fmt: skip


def steady(*steps: DecodedStep) -> Steady:
    return Steady(tuple(item.global_step for item in steps), {0: StepColumns.of(steps)})


def test_shares_are_of_the_peaks_and_retries_of_the_steps() -> None:
    made = allocator_use(steady(step(0, 60, 100, 0), step(1, 80, 90, 1)))
    # 80 of 200, 100 of 200, 1 - 80 / 100, one retry in two steps.
    assert made == AllocatorUse(40.0, 50.0, pytest.approx(0.2), 200, 0.5)  # type: ignore[arg-type]


def test_no_retry_is_zero_and_no_counter_is_nothing() -> None:
    assert allocator_use(steady(step(0, 80, 80, 0))) == AllocatorUse(40.0, 40.0, 0.0, 200, 0.0)
    assert allocator_use(steady(step(0, 80))) == AllocatorUse(40.0, None, None, 200, None)
    assert allocator_use(steady(step(0, None))) is None


def test_the_fullest_rank_stands_for_all() -> None:
    one, other = StepColumns.of([step(0, 50, 100, 3)]), StepColumns.of([step(0, 90, 100, 0)])
    made = allocator_use(Steady((0,), {0: one, 1: other}))
    assert made == AllocatorUse(45.0, 50.0, 0.5, 200, 3.0)


# --- cause and symptom -------------------------------------------------------------------------------------


def test_where_allocations_fail_the_hosts_time_is_a_symptom() -> None:
    made = concluded(context(use(95.0, 2.0)))
    assert made.verdict.kind == "memory_pressure"
    assert found(made, "host_bound").symptom_of == "memory_pressure"
    cause = found(made, "memory_pressure")
    assert (cause.value, cause.unit, cause.sub_cause) == (95.0, USED, "allocator_retries")
    assert "9.5 of 10.0 GiB" in cause.cause
    assert "2.0 allocations per step failed" in cause.cause
    assert "20 % of the allocator's memory does not belong to tensors" in cause.cause


@pytest.mark.parametrize("retries", [0.0, None], ids=["none failed", "not recorded"])
def test_where_none_fails_the_host_is_the_cause(retries: float | None) -> None:
    made = concluded(context(use(95.0, retries)))
    assert made.verdict.kind == "host_bound"
    assert found(made, "memory_pressure").symptom_of is None
    assert "alloc_retries_per_step" in found(made, "memory_pressure").evidence or retries is None


def test_late_ranks_are_a_symptom_too() -> None:
    made = concluded(context(use(95.0, 1.0), host_ms=5.0, waits=30.0))
    assert made.verdict.kind == "memory_pressure"
    assert [item.kind for item in made.findings if item.symptom_of == "memory_pressure"] != []
    assert concluded(context(use(95.0, 0.0), host_ms=5.0, waits=30.0)).verdict.kind == "straggler"


@pytest.mark.parametrize(("retries", "fired"), [(0.11, True), (0.1, False)])
def test_allocations_that_fail_below_the_limit_of_memory_are_pressure(retries: float, fired: bool) -> None:
    measured, finding = measure("memory_pressure", context(use(60.0, retries)), RECORDS)
    assert measured.fired is fired
    if finding is None:
        assert (measured.value, measured.unit) == (60.0, USED)
        return
    assert (finding.value, finding.threshold, finding.unit) == (retries, 0.1, RETRIES)
    statement = concluded(context(use(60.0, retries))).verdict.statement
    assert statement == (
        "Memory pressure: 0.1 allocations per step fail, and GPU memory in tensors is 60 % full."
    )


def test_the_limit_of_failing_allocations_is_the_configurations() -> None:
    policy = Policy.of(Thresholds(alloc_retries_per_step=3.0))
    assert policy.as_dict()["alloc_retries_per_step"] == 3.0
    assert concluded(context(use(95.0, 2.0)), policy).verdict.kind == "host_bound"


# --- on either side of a threshold -------------------------------------------------------------------------


def exchanging(transfer: float) -> Observation:
    """30 ms of exposed communication in 100, of which `transfer` is exchange, the rest waits by turns."""
    made = context(None, host_ms=0.0)
    rows = [
        RankBreakdown(
            rank=rank, host="node0", steps=20, step_ms=100.0, compute_ms=70.0, exposed_comm_ms=30.0,
            exposed_copy_ms=0.0, data_wait_ms=0.0, host_ms=0.0, comm_ms=30.0, overlap_ratio=0.0,
        )
        for rank in range(2)
    ]  # fmt: skip
    costs = [
        RankCosts(rank, 100.0, 70.0, 0.0, 0.0, 0.0, 30.0, {(1 - rank, "compute"): 30.0 - transfer})
        for rank in range(2)
    ]
    return changed(made, breakdown=BreakdownTable(steps=20, per_rank=rows), costs=costs, cuda=False)


@pytest.mark.parametrize(
    ("transfer", "kind"), [(20.1, "communication"), (20.0, "healthy"), (19.9, "healthy")]
)
def test_exchange_is_a_cause_above_its_threshold_alone(transfer: float, kind: str) -> None:
    made = concluded(exchanging(transfer))
    assert made.verdict.kind == kind
    if kind == "healthy":
        # The verdict says what passed a threshold and why it is none.
        said = f"communication ({transfer:.1f} % of the step is transfer (threshold 20), the rest is waiting"
        assert said in made.verdict.statement


@pytest.mark.parametrize(("limit", "kind"), [(15.0, "communication"), (16.0, "healthy"), (None, "healthy")])
def test_that_threshold_is_the_configurations(limit: float | None, kind: str) -> None:
    policy = Policy.of(Thresholds(exchange_pct=limit))
    assert policy.as_dict()["exchange_pct"] == (20.0 if limit is None else limit)
    assert concluded(exchanging(15.5), policy).verdict.kind == kind
