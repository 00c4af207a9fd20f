"""Runs of a matrix one after another, each kept as it ends, so that an interrupted matrix goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import append_line
from aorta.artefacts.layout import runs
from aorta.errors import AortaError
from aorta.validation.running import Analyse


class Named(Protocol):
    """A cell of a matrix."""

    @property
    def name(self) -> str:
        """Unique within the matrix."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Says what came of one run; a line of the record."""

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


def launch_words(folder: Path, nodes: int, per_node: int, program: Sequence[object]) -> list[str]:
    """Returns the options of `aorta profile` or `aorta submit` for one run in `folder`, and its program.

    Args:
        folder: of the run.
        nodes: of the job.
        per_node: ranks per node.
        program: a module of aorta that trains, and its arguments.
    """
    return [
        *("--nodes", str(nodes), "--procs-per-node", str(per_node)),
        *("--results", str(folder / "results"), "--docs", str(folder / "docs")),
        *("--profiler", "none", "--time", "00:05:00", "--", "-m", *map(str, program)),
    ]


def analysed_run(folder: Path, analyse: Analyse) -> Analysis | str:
    """Returns the analysis of the newest run in `folder`, or why there is none.

    An interrupted matrix leaves a run that is not on record, and the cell runs again.
    """
    found = next((run for _, run in reversed(runs(folder / "results"))), None)
    try:
        return "the run wrote no results" if found is None else analyse(found)
    except AortaError as error:
        return error.message
