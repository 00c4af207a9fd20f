"""Which runs repeat one another, and what a run takes without what was found in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, DataQuality, Replay, Throughput, WhatIf
from aorta.artefacts.traced import ProfilerOverhead
from aorta.metrics.repeats import Ran, repeats_of, undisturbed_step_ms
from tests.support.analyses import analysis

RATE = analysis().throughput
assert RATE is not None


def rate(**changes: Any) -> Throughput:
    assert RATE is not None
    return msgspec.structs.replace(RATE, **changes)


def replayed(*speedups: float) -> Replay:
    gains = [
        WhatIf(
            kind="data_loading",
            removed="",
            ranks=[],
            step_ms=90.0 / speedup,
            step_ms_interval=None,
            speedup=speedup,
            speedup_interval=None,
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
    assert undisturbed_step_ms(analysis(throughput=rate(step_ms_mean=96.0))) == 96.0
    # The median is 90 ms where there is no mean.
    assert undisturbed_step_ms(analysis(replay=replayed(1.5, 1.2))) == 90 / 1.5
    assert undisturbed_step_ms(analysis(replay=replayed())) == 90.0
    assert undisturbed_step_ms(analysis(throughput=None)) is None
