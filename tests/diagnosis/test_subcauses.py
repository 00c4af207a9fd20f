"""The cause behind the cause: each from its measurement, and not determined without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from aorta.artefacts.analysis import Finding
from aorta.artefacts.instrument_record import InstrumentRecord
from aorta.artefacts.measured import BreakdownTable, RankBreakdown, Utilization
from aorta.artefacts.steps import CollectiveId, DecodedStep, StepRange, StepRanges
from aorta.config.schema import Config, DataloaderConfig
from aorta.diagnosis.actions import with_actions
from aorta.diagnosis.finding import NOT_DETERMINED
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.host_time import host_share
from aorta.diagnosis.model import Modelled
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.rank import RankCosts
from aorta.diagnosis.symptoms import unsupported
from aorta.metrics.allocator import AllocatorUse
from aorta.metrics.collectives import match_collectives
from aorta.metrics.collector_pauses import Pauses
from aorta.metrics.host_gaps import HostGap
from aorta.metrics.launches import Launches
from aorta.metrics.trace_capture import HostIdle
from aorta.metrics.whatif import Replays
from tests.support.findings import IDLE, RECORDS, caused, changed, code, context, finding, measure
from tests.support.steps import step

KNOWN = Config(dataloader=DataloaderConfig(num_workers=3))

# --- data loading ------------------------------------------------------------------------------------------


def loaded(config: Config | None = KNOWN, **node0: Any) -> Observation:
    return context(loads={"node0": replace(IDLE, **node0), "node1": IDLE}, config=config)


def test_workers_that_do_not_keep_up_while_cpus_are_free_are_saturated() -> None:
    found = caused(finding("data_loading"), loaded())
    assert found.sub_cause == "workers_saturated"
    assert found.sub_cause_text is not None
    assert "3 workers per rank do not keep up, and 75 %" in found.sub_cause_text
    assert found.evidence["workers"] == 3


def test_a_job_that_uses_all_its_cpus_is_limited_by_them() -> None:
    assert code(finding("data_loading"), loaded(job_cpu_pct=181.0)) == "host_cpu_limit"
    assert code(finding("data_loading"), loaded(job_cpu_pct=179.0)) == "workers_saturated"
    assert code(finding("data_loading", [1]), loaded(job_cpu_pct=181.0)) == "workers_saturated"


def test_disks_that_read_while_cpus_are_free_are_storage() -> None:
    assert code(finding("data_loading"), loaded(read_mb_per_s=20.0)) == "storage"
    assert code(finding("data_loading"), loaded(read_mb_per_s=19.0)) == "workers_saturated"


def test_no_workers_and_nothing_known() -> None:
    none = Config(dataloader=DataloaderConfig(num_workers=0))
    assert code(finding("data_loading"), context(config=none)) == "no_workers"
    assert code(finding("data_loading"), context()) == NOT_DETERMINED
    assert code(finding("data_loading"), loaded(None)) == NOT_DETERMINED


def hooked(*workers: int | None) -> dict[int, InstrumentRecord]:
    return {
        rank: InstrumentRecord(
            rank=rank,
            pid=1,
            python="python",
            python_version="3.12",
            torch_version="2.11",
            loader_workers=count,
        )
        for rank, count in enumerate(workers)
    }


@pytest.mark.parametrize(
    ("workers", "ranks", "sub_cause", "said"),
    [
        ((0, 0), [], "no_workers", "set the DataLoader's `num_workers` to 2"),
        ((0, 2), [1], "workers_saturated", "raise the DataLoader's `num_workers`, now 2"),
        ((0, 2), [], NOT_DETERMINED, "preprocess the samples"),
        ((None, None), [], NOT_DETERMINED, "preprocess the samples"),
        ((), [], NOT_DETERMINED, "preprocess the samples"),
    ],
)
def test_the_workers_of_an_own_program_are_those_that_its_hooks_saw(
    workers: tuple[int | None, ...], ranks: list[int], sub_cause: str, said: str
) -> None:
    seen = changed(loaded(None), stacks=hooked(*workers))
    found = finding("data_loading", ranks)
    assert code(found, seen) == sub_cause
    assert FINDINGS["data_loading"].actions(found, seen)[0].startswith(said)


# --- communication -----------------------------------------------------------------------------------------


def with_calls(calls: Sequence[tuple[str, int, int | None]], *, wobble: int = 0) -> Modelled:
    """Steps whose collectives follow 20 ms of compute: group, ms of transfer, bytes."""
    records: dict[int, list[DecodedStep]] = {0: [], 1: []}
    at = 0
    for number in range(20):
        start, now, ranges = at, at + 20, []
        for place, (group, ms, size) in enumerate(calls):
            end = now + ms + (wobble if number % 2 else 0)
            name = CollectiveId(op="all_reduce", group=group, seq=place, bytes=size)
            ranges.append(
                StepRange(
                    stream="allreduce", tag="g", start_ms=now - start, end_ms=end - start, metadata=name
                )
            )
            now = end
        at = now + 5
        for rank, steps in records.items():
            made = step(number, (start, at), rank=rank, compute=[(start, start + 20)])
            assert made.profile is not None
            steps.append(_with(made, [*made.profile.ranges, *ranges]))
    found = match_collectives(records, dict.fromkeys(records, "clock"))
    assert not isinstance(found, str)
    replays = Replays.of(found, range(20))
    assert isinstance(replays, Replays)
    return Modelled(replays, None, None, {})


def _with(made: DecodedStep, ranges: list[StepRange]) -> DecodedStep:
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    return DecodedStep(**{**fields, "profile": StepRanges(ranges=ranges)})


def communicating(
    calls: Sequence[tuple[str, int, int | None]], hidden: float = 10.0, wobble: int = 0
) -> Observation:
    seen = context(model=with_calls(calls, wobble=wobble))
    rows = [changed_row(row, hidden) for row in seen.steps.breakdown.per_rank]
    return changed(seen, breakdown=BreakdownTable(steps=20, per_rank=rows))


def changed_row(row: RankBreakdown, hidden: float) -> RankBreakdown:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return RankBreakdown(**{**fields, "comm_ms": 30.0 + hidden})


LARGE = 64 << 20


def test_what_calls_take_is_known_also_where_the_replay_predicts_nothing() -> None:
    small = communicating([("0", 5, 64 * 1024)])
    assert small.model is not None
    assert small.model.replays is not None
    small.model.replays.error_pct = 9.0
    assert small.model.usable is None
    assert code(finding("communication"), small) == "latency_bound"


def test_small_messages_are_bound_by_latency_large_ones_by_bandwidth() -> None:
    small = communicating([("0", 5, 64 * 1024), ("0", 5, 64 * 1024), ("0", 4, LARGE)])
    assert code(finding("communication"), small) == "latency_bound"
    large = caused(finding("communication"), communicating([("0", 30, LARGE)]))
    assert large.sub_cause == "bandwidth_bound"
    assert large.evidence["gb_per_s"] == pytest.approx(LARGE / 0.030 / 1e9)


def test_calls_that_at_times_take_twice_as_long_are_not_said_to_be_at_the_links_best() -> None:
    found = caused(finding("communication"), communicating([("0", 30, LARGE)], wobble=60))
    assert found.sub_cause == NOT_DETERMINED
    assert found.evidence["mean_over_fastest"] == pytest.approx(2.0)


def test_a_group_that_carries_less_than_half_as_much_is_on_a_slow_link() -> None:
    assert code(finding("communication"), communicating([("a", 10, LARGE), ("b", 30, LARGE)])) == "slow_link"
    assert (
        code(finding("communication"), communicating([("a", 20, LARGE), ("b", 30, LARGE)]))
        == "bandwidth_bound"
    )


def test_transfer_that_compute_could_hide_and_does_not_is_poor_overlap() -> None:
    # 30 exposed and 7 or 8 hidden: 0.19 and 0.21 of it, with 60 ms of compute to hide it.
    assert code(finding("communication"), communicating([("0", 30, LARGE)], hidden=7.0)) == "poor_overlap"
    assert code(finding("communication"), communicating([("0", 30, LARGE)], hidden=8.0)) == "bandwidth_bound"


def test_unknown_sizes_leave_it_undetermined() -> None:
    assert code(finding("communication"), communicating([("0", 30, None)])) == NOT_DETERMINED
    assert code(finding("communication"), context()) == NOT_DETERMINED


# --- the host ----------------------------------------------------------------------------------------------


def test_a_single_gap_that_is_most_of_the_hosts_part_is_named() -> None:
    most = context(gap=HostGap("the loader", "forward", 8.0, 0.8))
    found = caused(finding("host_bound"), most)
    assert found.sub_cause == "host_work"
    assert found.sub_cause_text is not None
    assert "8.0 ms per step are spent between the loader and forward: 80 %" in found.sub_cause_text
    assert host_share(most) == 0.8
    many = context(gap=HostGap("the loader", "forward", 4.0, 0.4))
    assert code(finding("host_bound"), many) == NOT_DETERMINED
    assert host_share(many) is None


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        ({0: 11.0}, "gc_pauses"),
        ({0: 5.1, 1: 5.1}, "gc_pauses"),
        ({0: 10.0}, NOT_DETERMINED),
        ({}, NOT_DETERMINED),
    ],
)
def test_pauses_of_the_collector_that_are_most_of_the_hosts_part_are_named(
    pauses: dict[int, float], expected: str
) -> None:
    """The host's part is 10 ms on either rank."""
    for cuda, inside in ((True, 1.0), (False, 0.0)):
        noted = {rank: Pauses(ms, ms - inside * ms) for rank, ms in pauses.items()}
        seen = context(collector=noted, cuda=cuda)
        assert code(finding("host_bound"), seen) == expected
        advice = FINDINGS["host_bound"].actions(finding("host_bound"), seen)
        assert any("gc.freeze()" in action for action in advice) is (expected == "gc_pauses")


def test_pauses_within_compute_are_no_host_time_of_a_cpu() -> None:
    inside = {rank: Pauses(20.0, 0.0) for rank in range(2)}
    assert code(finding("host_bound"), context(collector=inside, cuda=False)) == NOT_DETERMINED
    assert code(finding("host_bound"), context(collector=inside, cuda=True)) == "gc_pauses"


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        (HostIdle(8.0, 2.0, 0.0, 900.0, None), "launch_bound"),
        (HostIdle(2.0, 8.0, 6.0, 900.0, None), "synchronisation"),
        (HostIdle(2.0, 8.0, 1.0, 900.0, None), "host_work"),
    ],
)
def test_traces_tell_launches_synchronisation_and_the_rest(idle: HostIdle, expected: str) -> None:
    assert code(finding("host_bound"), context(idle=idle)) == expected


def test_kernels_that_fill_little_of_their_windows_are_launch_bound() -> None:
    # Windows of 60 ms in which kernels run for 15: 45 ms idle inside, 10 outside.
    seen = context(launches=Launches(kernels=9000.0, kernels_ms=15.0, windows_ms=60.0))
    measured, found = measure("host_bound", seen, RECORDS)
    assert measured.value == pytest.approx(10 + 45)
    assert found is not None
    assert code(found, seen) == "launch_bound"
    measured, found = measure("host_bound", context(), RECORDS)
    assert (measured.value, found) == (10.0, None)


def holding(tensors: float, reserved: float | None = None, retries: float | None = None) -> AllocatorUse:
    share = None if reserved is None else 1 - tensors / reserved
    return AllocatorUse(tensors, reserved, share, 10 << 30, retries)


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "said"),
    [(None, "cgroup"), (0.0, "hit it 0 times during the steps"), (3.0, "hit it 3 times during the steps")],
)
def test_memory_near_the_jobs_limit(hits: float | None, said: str) -> None:
    limit = finding("memory_pressure", of="the job's memory limit on a node")
    found = caused(limit, loaded(limit_hits=hits))
    assert found.sub_cause == "host_limit"
    assert found.sub_cause_text is not None
    assert found.sub_cause_text.endswith(said)


def test_memory_that_tensors_hold_and_that_they_do_not() -> None:
    use = Utilization(
        gpu_util_pct=None,
        effective_gpu_util_pct=None,
        gpu_memory_used_pct=95.0,
        gpu_power_w=None,
        cpu_pct=None,
        job_cpu_pct=None,
        host_memory_used_pct=None,
        samples=5,
    )
    held: dict[str, Any] = {"utilization": use, "allocator": holding(80.0)}
    assert code(finding("memory_pressure"), context(**held)) == "tensors"
    assert (
        code(finding("memory_pressure"), context(**{**held, "allocator": holding(75.0)})) == "outside_tensors"
    )
    assert code(finding("memory_pressure"), context(utilization=use)) == NOT_DETERMINED


# --- what is no cause --------------------------------------------------------------------------------------


def test_symptoms_have_no_cause_behind_them() -> None:
    symptom = finding("communication")
    fields = {name: getattr(symptom, name) for name in symptom.__struct_fields__}
    assert code(Finding(**{**fields, "symptom_of": "straggler"}), context()) is None


def test_exchange_below_its_threshold_is_no_cause_though_waits_lift_it_above() -> None:
    def seen(waits: float) -> Observation:
        costs = [RankCosts(0, 100.0, 60.0, 0.0, 10.0, 0.0, 30.0, {(1, "compute"): waits})]
        return context(costs=costs)

    assert unsupported([finding("communication")], seen(9.0), RECORDS) == {}
    reasons = unsupported([finding("communication")], seen(11.0), RECORDS)
    assert "19.0 % of the step is transfer" in reasons["communication"]


def test_lateness_by_turns_is_no_cause_on_shared_cpus_or_not() -> None:
    shared = context(cores_shared="4 ranks share 2 CPUs")
    assert "share 2 CPUs" in unsupported([finding("straggler")], shared, RECORDS)["straggler"]
    assert unsupported([finding("straggler", [1])], shared, RECORDS) == {}
    assert "none stands out" in unsupported([finding("straggler")], context(), RECORDS)["straggler"]
    assert unsupported([finding("straggler", [1])], context(), RECORDS) == {}


@pytest.mark.parametrize(("compute", "host", "guilty"), [(10.0, 2.0, True), (2.0, 10.0, False)])
def test_without_a_replay_of_the_pipeline_no_host_is_guilty(
    compute: float, host: float, guilty: bool
) -> None:
    """Kernels that take longer are measured all the same."""
    late = finding("straggler", [1], waits_for_compute_ms=compute, waits_for_host_ms=host)
    missed = changed(
        context(), replay_missed="the pipeline's replayed step takes 4.0 ms, the traced step 9.0 ms"
    )
    assert unsupported([late], context(), RECORDS) == {}
    assert (unsupported([late], missed, RECORDS) == {}) is guilty


@pytest.mark.parametrize(
    ("missed", "said"),
    [("the replay comes to 4.0 ms, the traced step 9.0 ms", "host wait"), (None, "the link between")],
)
def test_idle_gpus_get_advice_for_hosts_where_the_replay_of_the_pipeline_misses_the_step(
    missed: str | None, said: str
) -> None:
    """Exchange takes 30 of 100 ms, and hosts 10."""
    idle = with_actions(finding("gpu_underutilization"), changed(context(config=None), replay_missed=missed))
    assert said in idle.actions[0]


def test_exchange_is_not_told_from_waiting_without_a_replay_of_the_pipeline() -> None:
    absent = changed(context(), blame_absent="calls are not matched")
    missed = changed(
        absent, replay_missed="the pipeline's replayed step takes 4.0 ms, the traced step 9.0 ms"
    )
    assert unsupported([finding("communication")], absent, RECORDS) == {}
    assert (
        "4.0 ms, the traced step 9.0 ms"
        in unsupported([finding("communication")], missed, RECORDS)["communication"]
    )


@pytest.mark.parametrize(("evidence", "said"), [({"compute_holds_gaps": True}, True), ({}, False)])
def test_compute_known_by_windows_may_be_the_host(evidence: dict[str, Any], said: bool) -> None:
    late = finding("straggler", [1], waits_for_compute_ms=9.0, waits_for_host_ms=1.0, **evidence)
    text = caused(late, context()).sub_cause_text or ""
    assert ("or its host launches later" in text) is said


# --- one and several ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "said"), [(1, "1 worker per rank does not"), (2, "2 workers per rank do not")]
)
def test_workers_agree_with_their_number(workers: int, said: str) -> None:
    config = Config(dataloader=DataloaderConfig(num_workers=workers))
    text = caused(finding("data_loading"), context(config=config)).sub_cause_text
    assert text is not None
    assert text.startswith(f"{said} keep up")


def test_an_idle_gpu_may_ask_for_the_advice_of_inefficient_compute() -> None:
    """The costliest cause gives it, also where no mistake is above the threshold."""
    assert FINDINGS["compute_inefficiency"].actions(finding("gpu_underutilization"), context()) == []
