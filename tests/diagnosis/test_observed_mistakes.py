"""Mistakes that records and samples show; each has a twin in which the same was measured and is small."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from aorta.artefacts.analysis import Finding
from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction
from aorta.artefacts.measured import Utilization
from aorta.artefacts.mistakes import Mistake, MistakePlace
from aorta.artefacts.weight import Estimate
from aorta.config.schema import Config, ProfilingConfig
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.observed_mistakes import with_observed
from aorta.metrics.collector_pauses import Pauses
from aorta.metrics.node_load import NodeLoad, Throttling
from tests.support.findings import changed, context


def named(seen: Observation) -> dict[str, Mistake]:
    return {item.id: item for item in with_observed(seen).facts.mistakes}


def hooked(
    rank: int, *, threads: int | None = None, places: list[SampledFunction] | None = None
) -> InstrumentRecord:
    return InstrumentRecord(
        rank=rank,
        pid=rank,
        python="python",
        python_version="3.12",
        torch_version="2.11",
        threads=threads,
        samples={"other": 50, "forward": 50},
        places=places or [],
    )


def test_nothing_is_named_where_nothing_was_measured() -> None:
    assert named(context()) == {}


def test_pauses_of_the_collector_gain_their_share_of_the_step() -> None:
    found = named(changed(context(), collector={0: Pauses(20.0, 20.0), 1: Pauses(10.0, 10.0)}))["gc_pauses"]
    # 100 ms without the 20 of rank 0, or without all 30.
    assert found.gain.value == pytest.approx(100 / 80)
    assert found.gain.high == pytest.approx(1 + 1.35 * 30 / 70)
    assert found.gain.low == 1.0
    assert found.ranks == []
    assert named(changed(context(), collector={0: Pauses(4.0, 4.0)})) == {}


def test_a_pause_on_one_rank_names_it() -> None:
    assert named(changed(context(), collector={1: Pauses(20.0, 20.0)}))["gc_pauses"].ranks == [1]


def test_a_mistake_that_is_intended_is_named_as_such() -> None:
    config = Config(profiling=ProfilingConfig(intended_mistakes=["gc_pauses"]))
    seen = changed(context(), collector={0: Pauses(20.0, 20.0)}, config=config)
    assert named(seen)["gc_pauses"].intended


def throttled(
    thermal: float, power: float, other: float, compute: float, clock: float | None = 1000.0
) -> Observation:
    seen = context()
    rows = [
        msgspec.structs.replace(row, compute_ms=compute if row.rank == 1 else 60.0)
        for row in seen.steps.breakdown.per_rank
    ]
    table = type(seen.steps.breakdown)(steps=20, per_rank=rows)
    limits = {0: Throttling(0.0, other, 50, 1500.0), 1: Throttling(thermal, power, 50, clock)}
    return changed(seen, breakdown=table, throttling=limits)


@pytest.mark.parametrize(("thermal", "power"), [(0.9, 0.0), (0.0, 0.9)])
def test_a_gpu_that_is_limited_while_the_others_are_not(thermal: float, power: float) -> None:
    found = named(throttled(thermal, power, 0.0, 80.0))["throttling"]
    assert found.ranks == [1]
    assert found.gain.value == pytest.approx(100 / 80)


@pytest.mark.parametrize(
    ("thermal", "other", "compute"),
    [(0.3, 0.0, 80.0), (0.9, 0.9, 80.0), (0.9, 0.0, 60.0), (0.9, 0.0, 62.0)],
    ids=["seldom", "all of them", "no slower", "hardly slower"],
)
def test_a_limit_that_costs_nothing_is_no_mistake(thermal: float, other: float, compute: float) -> None:
    assert named(throttled(thermal, 0.0, other, compute)) == {}


@pytest.mark.parametrize("clock", [1500.0, None], ids=["at the same clock", "at an unknown clock"])
def test_a_limit_that_the_clock_does_not_show_is_no_mistake(clock: float | None) -> None:
    assert named(throttled(0.9, 0.0, 0.0, 80.0, clock)) == {}


def test_the_clock_bounds_what_a_limit_costs() -> None:
    # At 1,200 instead of 1,500 MHz 60 ms become 75; the rest of the 80 ms is more work.
    assert named(throttled(0.9, 0.0, 0.0, 80.0, 1200.0))["throttling"].gain.value == pytest.approx(100 / 85)


def crowded(threads: int | None, job_pct: float | None) -> Observation:
    load = NodeLoad(50.0, job_pct, 4.0, 0.0)
    stacks = {rank: hooked(rank, threads=threads) for rank in range(2)}
    return changed(context(), loads={"node0": load, "node1": load}, stacks=stacks)


def test_more_threads_than_cores_that_are_busy() -> None:
    found = named(crowded(16, 390.0))["cpu_oversubscription"]
    # 10 ms of the host, four threads per CPU: a quarter is left.
    assert found.gain.value == pytest.approx(100 / (100 - 7.5))
    assert found.gain.high == pytest.approx(100 / 90)
    assert found.evidence["threads_per_cpu"] == {"node0": 4.0, "node1": 4.0}


@pytest.mark.parametrize(
    ("threads", "job_pct"), [(4, 390.0), (16, 200.0), (None, 390.0), (16, None)], ids=str
)
def test_threads_that_have_their_cores_are_no_mistake(threads: int | None, job_pct: float | None) -> None:
    assert named(crowded(threads, job_pct)) == {}


def traced(where: MistakePlace | None) -> Observation:
    seen = context()
    gain = Estimate(value=2.0, low=1.5, high=2.5)
    item = Mistake(id="empty_cache", title="t", ranks=[], where=where, gain=gain)
    seen = replace(seen, facts=msgspec.structs.replace(seen.facts, mistakes=[item]))
    place = SampledFunction(part="other", function="train", file="train.py", line=12, samples=40)
    return changed(seen, stacks={rank: hooked(rank, places=[place]) for rank in range(2)})


def test_sampled_stacks_tell_the_line_that_the_trace_does_not() -> None:
    found = named(traced(MistakePlace(function="empty_cache")))["empty_cache"]
    assert found.where == MistakePlace(function="train", file="train.py", line=12)


def test_a_line_of_the_trace_stays() -> None:
    known = MistakePlace(function="own", file="own.py", line=3)
    assert named(traced(known))["empty_cache"].where == known


def test_a_symptom_repeats_the_actions_of_the_mistake_behind_it() -> None:
    gain = Estimate(value=2.0, low=1.5, high=2.5)
    item = Mistake(id="needless_checkpointing", title="t", ranks=[], where=None, gain=gain)
    seen = context()
    seen = replace(seen, facts=msgspec.structs.replace(seen.facts, mistakes=[item]))
    symptom = Finding(
        kind="gpu_underutilization",
        severity="warning",
        cause="c",
        ranks=[],
        nodes=[],
        value=1.0,
        threshold=1.0,
        unit="%",
        evidence={},
        estimated_speedup=None,
        actions=[],
    )
    actions = FINDINGS["compute_inefficiency"].actions(symptom, seen)
    assert actions[-1] == "read more: aorta explain needless_checkpointing"


@pytest.mark.parametrize(("used", "left"), [(95.0, False), (20.0, True), (0.0, True), (None, True)])
def test_recomputation_is_needed_where_memory_is_full(used: float | None, left: bool) -> None:
    seen = context()
    gain = Estimate(value=1.8, low=1.5, high=2.1)
    mistake = Mistake(id="needless_checkpointing", title="", ranks=[], where=None, gain=gain)
    names = ("gpu_util_pct", "effective_gpu_util_pct", "gpu_power_w", "cpu_pct", "job_cpu_pct")
    rest = dict.fromkeys((*names, "host_memory_used_pct"))
    use = Utilization(gpu_memory_used_pct=used, samples=10, **rest)
    facts = msgspec.structs.replace(seen.facts, mistakes=[mistake])
    seen = changed(seen, utilization=use)
    assert ("needless_checkpointing" in named(replace(seen, facts=facts))) == left
