"""One run after another, each kept as it ends, and the analysis of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.files import is_folder, read_regular
from aorta.artefacts.io import append_line
from aorta.artefacts.layout import RunDir
from aorta.artefacts.study_layout import ValidationDir
from aorta.artefacts.validation import DiagnosedRun, Trial
from aorta.errors import ArtefactError
from aorta.validation.matrix import MatrixCell


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over."""

    job_id: str
    run_dir: Path
    completed: bool
    problem: str | None = None
    """Why it did not complete."""


Execute = Callable[[MatrixCell, str], Ended]
"""Runs a cell and waits for its end; the words tell how many cells there are."""
Analyse = Callable[[RunDir], Analysis]
"""The analysis as `aorta aggregate` makes it; it is given the run's folder and nothing else."""


def read_trials(folder: ValidationDir) -> dict[str, Trial]:
    """The runs so far by cell; of a cell that ran more than once, the last. A torn line costs its run.

    Raises:
        ArtefactError: there is a record, and it cannot be read.
    """
    try:
        text = read_regular(folder.trials)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ArtefactError(
            f"{folder.trials}: {error.strerror}", "name another folder with --into"
        ) from error
    trials = {}
    for line in text.splitlines():
        try:
            trial = msgspec.json.decode(line, type=Trial)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        trials[trial.cell] = msgspec.structs.replace(trial, run_dir=_here(trial.run_dir, folder.root))
    return trials


def _here(run_dir: str, root: Path) -> str:
    """Place of a run now, if the folder was moved with it: results, scenario and run are its last names."""
    moved = root.joinpath(*Path(run_dir).parts[-3:])
    return str(moved) if is_folder(moved) else run_dir


def in_order(cells: Sequence[MatrixCell], trials: Mapping[str, Trial]) -> list[Trial]:
    """The runs of the matrix that there are, in its order, with the truth as the matrix has it."""
    return [
        msgspec.structs.replace(trials[cell.name], truth=cell.truth) for cell in cells if cell.name in trials
    ]


def run_cells(
    cells: Sequence[MatrixCell],
    folder: ValidationDir,
    execute: Execute,
    analyse: Analyse,
    told: Callable[[Trial], None],
) -> None:
    """Run what has not completed yet, and keep each result before the next one starts.

    Args:
        cells: the matrix.
        folder: of the validation; results that it has are kept.
        execute: runs one.
        analyse: of the finished run.
        told: each result, once it is on record.

    Raises:
        ArtefactError: the record cannot be read or written.
        KeyboardInterrupt: `execute` was; what ran before is on record.
    """
    done = read_trials(folder)
    for number, cell in enumerate(cells, start=1):
        before = done.get(cell.name)
        if before is not None and before.completed:
            continue
        started = time.time_ns()
        ended = execute(cell, f"{number} of {len(cells)}")
        trial = Trial(
            cell=cell.name,
            nodes=cell.nodes,
            world_size=cell.world_size,
            truth=cell.truth,
            job_id=ended.job_id,
            run_dir=str(ended.run_dir),
            started_wall_ns=started,
            ended_wall_ns=time.time_ns(),
            completed=ended.completed,
            said=None,
            problem=ended.problem,
        )
        keep(folder, analysed(trial, analyse), told)


def analyse_again(
    cells: Sequence[MatrixCell], folder: ValidationDir, analyse: Analyse, told: Callable[[Trial], None]
) -> None:
    """Analyse the runs of a validation again, without running anything.

    Raises:
        ArtefactError: the record cannot be read or written.
    """
    for trial in in_order(cells, read_trials(folder)):
        keep(folder, analysed(trial, analyse), told)


def keep(folder: ValidationDir, trial: Trial, told: Callable[[Trial], None]) -> None:
    """Put a result on record."""
    try:
        append_line(folder.trials, msgspec.json.encode(trial).decode())
    except OSError as error:
        raise ArtefactError(
            f"{folder.trials}: {error.strerror}", "free some space, then continue with --into"
        ) from error
    told(trial)


def analysed(trial: Trial, analyse: Analyse) -> Trial:
    """`trial` with what the analysis says of its run; why there is no analysis, where there is none."""
    if not trial.completed:
        return trial
    try:
        analysis = analyse(RunDir(Path(trial.run_dir)))
    except Exception as error:
        # Whatever the analysis does with a run is a result, and must not cost the runs that follow.
        problem = f"the analysis failed: {type(error).__name__}: {error}"
        return msgspec.structs.replace(trial, said=None, problem=problem)
    return msgspec.structs.replace(trial, said=what_was_said(analysis), problem=None)


def what_was_said(analysis: Analysis) -> DiagnosedRun:
    """The parts of an analysis that are scored."""
    verdict, rows = analysis.verdict, analysis.breakdown.per_rank
    leading = next((item for item in analysis.findings if item.kind == verdict.kind), None)
    gain = leading.estimated_speedup if leading is not None else None
    interval = gain if gain is not None and gain.basis == "replay" else None
    replay = analysis.replay
    return DiagnosedRun(
        kind=verdict.kind,
        ranks=verdict.ranks,
        statement=verdict.statement,
        step_ms=sum(row.step_ms for row in rows) / len(rows) if rows else None,
        steps=analysis.breakdown.steps,
        cause=leading.sub_cause if leading is not None else None,
        speedup=gain.expected if gain is not None else None,
        speedup_low=interval.low if interval is not None else None,
        speedup_high=interval.high if interval is not None else None,
        withheld=replay.withheld if replay is not None else None,
        replay_error_pct=replay.error_pct if replay is not None else None,
    )
