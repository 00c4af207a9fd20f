"""A run of a validation is analysed beside those before it, as an aggregation does it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, Speedup
from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest
from aorta.commands._validation import analyse
from tests.support.synthetic import START_WALL_NS, RunSpec, write_run


def run(results: Path, number: int, compute_ms: float, late_ms: float = 0.0) -> RunDir:
    """A run that began `number` seconds after the synthetic ones do."""
    late = {1: late_ms} if late_ms else {}
    made = write_run(
        results, RunSpec(job_id=str(number), steps=24, compute_ms=compute_ms, extra_data_ms=late)
    )
    manifest = read_json(made.manifest, Manifest)
    started = START_WALL_NS + number * 1_000_000_000
    write_json(made.manifest, msgspec.structs.replace(manifest, started_wall_ns=started))
    return made


def gain(analysis: Analysis) -> Speedup:
    found = analysis.findings[0].estimated_speedup
    assert found is not None
    assert found.expected is not None
    return found


@pytest.mark.parametrize("before", [True, False])
def test_earlier_runs_widen_a_prediction_and_later_ones_do_not(tmp_path: Path, before: bool) -> None:
    slow = run(tmp_path, 5, 60.0, late_ms=80.0)
    alone = gain(analyse(slow))
    for number, compute_ms in enumerate((60.0, 62.0, 60.0, 62.0), start=1 if before else 6):
        analyse(run(tmp_path, number, compute_ms))
    beside = gain(analyse(slow))
    assert beside.expected == alone.expected
    assert (beside.high > 1.02 * alone.high) is before
    assert (beside == alone) is not before
    assert read_json(slow.analysis, Analysis).verdict.kind == "data_loading"
