"""The step records that a test's run left."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_record import StepRecord


def read_records(folder: Path, rank: int = 0) -> list[StepRecord]:
    """Every line of the rank's file, which must all be whole."""
    return [msgspec.json.decode(line, type=StepRecord) for line in RunDir(folder).records(rank).open("rb")]
