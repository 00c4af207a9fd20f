"""Runs of a matrix one after another, each kept as it ends, so that an interrupted matrix goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from aorta.artefacts.io import append_line


class Named(Protocol):
    """A cell of a matrix."""

    @property
    def name(self) -> str:
        """Unique within the matrix."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run; a line of the record."""

    cell: str


CellT = TypeVar("CellT", bound=Named)
TrialT = TypeVar("TrialT", bound=RunOutcome)


def run_matrix(
    cells: Sequence[CellT],
    record: Path,
    kind: type[TrialT],
    run: Callable[[CellT], TrialT],
    told: Callable[[TrialT], None],
) -> list[TrialT]:
    """Run what is not on record yet, one after another, and return every trial in the order of `cells`.

    Args:
        cells: the matrix.
        record: file with one line per trial.
        kind: type of a trial.
        run: runs one cell.
        told: each new result, once it is on record.
    """
    lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    done = {trial.cell: trial for trial in (msgspec.json.decode(line, type=kind) for line in lines)}
    for cell in cells:
        if cell.name not in done:
            trial = run(cell)
            append_line(record, msgspec.json.encode(trial).decode())
            done[cell.name] = trial
            told(trial)
    return [done[cell.name] for cell in cells]
