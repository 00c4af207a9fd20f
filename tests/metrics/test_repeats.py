"""Which runs repeat one another, and what a run takes without what was found in it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, DataQuality
from aorta.artefacts.measured import Interval, Throughput
from aorta.artefacts.replayed import Replay, WhatIf
from aorta.artefacts.traced import ProfilerOverhead
from aorta.metrics.another_run import Repeat
from aorta.metrics.repeats import Ran, repeats_of, undisturbed
from tests.support.analyses import analysis

RATE = analysis().throughput
assert RATE is not None


def rate(**changes: Any) -> Throughput:
    assert RATE is not None
    return msgspec.structs.replace(RATE, **changes)


def replayed(*speedups: float, wide: float | None = None) -> Replay:
    """With intervals of `wide` times and over each; None: without."""
    gains = [
        WhatIf(
            kind="data_loading",
            removed="",
            ranks=[],
            step_ms=90.0 / speedup,
            step_ms_interval=None,
            speedup=speedup,
            speedup_interval=Interval(low=speedup / wide, high=speedup * wide) if wide else None,
        )
        for speedup in speedups
    ]
    return Replay(
        steps=30,
        measured_step_ms=90.0,
        modelled_step_ms=90.0,
        error_pct=0.0,
        ideal_network_step_ms=None,
        predictions=gains,
    )


RUN = analysis(job_id="1")
AGAIN = analysis(job_id="2")
QUALITY: DataQuality = RUN.data_quality


@pytest.mark.parametrize(
    ("changes", "repeats"),
    [
        ({}, True),
        ({"job_id": "1"}, False),
        ({"job_id": "local-20261128T190352Z-1"}, False),
        ({"scenario": "4node"}, False),
        ({"world_size": 4}, False),
        ({"program": "bench.py"}, False),
        ({"settings": {"device": "cuda"}}, False),
        ({"throughput": rate(per_rank_batch=16)}, False),
        ({"throughput": rate(samples_per_s=1.0)}, True),
        ({"throughput": None}, False),
        ({"data_quality": msgspec.structs.replace(QUALITY, state="failed")}, False),
        ({"profiler_overhead": ProfilerOverhead(ratio=1.0, inside_steps=9, outside_steps=9)}, False),
    ],
)
def test_repeats_are_other_valid_runs_of_the_same_thing(changes: dict[str, Any], repeats: bool) -> None:
    other = msgspec.structs.replace(AGAIN, **changes)
    assert (repeats_of(Ran.of(RUN), RUN.job_id, [other]) == [other]) is repeats


def test_what_is_not_known_repeats_nothing() -> None:
    unknown: Analysis = msgspec.structs.replace(RUN, program=None)
    same = msgspec.structs.replace(AGAIN, program=None)
    assert repeats_of(Ran.of(unknown), "1", [same]) == []


def test_a_run_without_its_costliest_cause() -> None:
    assert undisturbed(analysis(throughput=rate(step_ms_mean=96.0))) == Repeat(96.0)
    # The median is 90 ms where there is no mean.
    assert undisturbed(analysis(replay=replayed(1.5, 1.2, wide=1.0))) == Repeat(90 / 1.5)
    assert undisturbed(analysis(replay=replayed())) == Repeat(90.0)
    assert undisturbed(analysis(throughput=None)) is None


def test_how_surely_it_was_taken_away_is_what_the_runs_own_steps_say() -> None:
    own = replayed(1.5, 1.2, wide=math.exp(2.7764451))
    found = undisturbed(analysis(replay=own))
    assert found is not None
    assert found.step_ms == 60.0
    assert found.doubt == pytest.approx(math.sqrt(2.0))
    # What other runs say of a prediction's interval is none of it.
    wider = [
        msgspec.structs.replace(item, speedup_interval=Interval(low=0.1, high=100.0), alone_interval=kept)
        for item in own.predictions
        for kept in [item.speedup_interval]
    ]
    assert undisturbed(analysis(replay=msgspec.structs.replace(own, predictions=wider))) == found


def test_a_cause_of_which_nobody_knows_how_much_it_takes_leaves_nothing_known() -> None:
    assert undisturbed(analysis(replay=replayed(1.5))) is None
    bounds = replayed(1.5, wide=1.0)
    most = [msgspec.structs.replace(item, bound=True) for item in bounds.predictions]
    assert undisturbed(analysis(replay=msgspec.structs.replace(bounds, predictions=most))) is None
    # One that takes nothing is taken away surely.
    assert undisturbed(analysis(replay=replayed(1.0))) == Repeat(90.0)
