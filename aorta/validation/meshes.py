"""Jobs that are meshes, with known faults: does the analysis name kind, rank or stage, and gain?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import runs
from aorta.errors import AortaError
from aorta.units import rank_words
from aorta.validation.resumable import RunOutcome, run_matrix
from aorta.validation.running import Analyse

RANKS = 4
GAIN_ERROR = 0.10
_ENDS_S = 240.0
_FAULTS = {
    "gpipe": ("slow_stage", "uneven"),
    "1f1b": ("slow_stage", "uneven"),
    "interleaved": ("slow_stage", "uneven"),
    "ddp_pp": ("slow_stage", "slow_rank", "uneven"),
    "fsdp_tp": ("slow_rank",),
    "experts": ("slow_rank", "uneven"),
}
_CULPRITS = (2, 1)


@dataclass(frozen=True, slots=True)
class MeshCell:
    """One run: a job, what is wrong with it, and with which rank."""

    job: str
    fault: str
    rank: int

    @property
    def name(self) -> str:
        """Unique within the matrix."""
        return f"{self.job}_{self.fault}_rank{self.rank}"

    @property
    def ranks(self) -> list[int]:
        """The ranks to name."""
        if self.fault == "none" or (self.fault == "uneven" and self.job != "experts"):
            return []
        if self.fault == "slow_stage" and self.job == "ddp_pp":
            first = self.rank // 2 * 2
            return [first, first + 1]
        return [self.rank]


class MeshTrial(RunOutcome, frozen=True, kw_only=True):
    """Result of one run; a line of `meshes.jsonl`."""

    job: str
    fault: str
    expected: list[int]
    verdict: str | None
    ranks: list[int]
    sub_cause: str | None
    step_ms: float | None
    speedup: float | None
    """Predicted."""
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Kind and ranks are right; of a run without a fault: nothing was found."""
        if self.fault == "none":
            return self.verdict == "healthy"
        if self.verdict != "straggler" or self.ranks != self.expected:
            return False
        return self.fault != "uneven" or self.job == "experts" or self.sub_cause == "uneven_microbatches"


def mesh_matrix() -> list[MeshCell]:
    """Every job without a fault, and each of its faults with two culprits; uneven microbatches have none."""
    cells = [MeshCell(job, "none", 0) for job in _FAULTS]
    for job, faults in _FAULTS.items():
        for fault in faults:
            alone = fault == "uneven" and job != "experts"
            cells += [MeshCell(job, fault, rank) for rank in (_CULPRITS[:1] if alone else _CULPRITS)]
    return cells


def run_meshes(
    cells: Sequence[MeshCell], folder: Path, analyse: Analyse, told: Callable[[MeshTrial], None]
) -> list[MeshTrial]:
    """Run what is not on record in `folder` yet, one after another, and return every trial."""
    return run_matrix(
        cells,
        folder / "meshes.jsonl",
        MeshTrial,
        lambda cell: _run(cell, folder / cell.name, analyse),
        told,
    )


def _run(cell: MeshCell, folder: Path, analyse: Analyse) -> MeshTrial:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "aorta", "profile", "--nodes", "1", "--procs-per-node", str(RANKS)]
    command += ["--results", str(folder / "results"), "--docs", str(folder / "docs")]
    command += ["--profiler", "none", "--time", "00:05:00", "--"]
    command += ["-m", "aorta.workloads.mesh", cell.job, cell.fault, str(cell.rank)]
    problem = None
    with (folder / "output.log").open("wb") as log:
        try:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=_ENDS_S, check=False)
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_ENDS_S:.0f} s"
    found: Analysis | None = None
    for _, run in runs(folder / "results"):
        try:
            found = analyse(run)
        except AortaError as error:
            problem = str(error)
    return trial_of(cell, found, problem or (None if found else "the run left nothing"))


def trial_of(cell: MeshCell, found: Analysis | None, problem: str | None) -> MeshTrial:
    """The result of a cell by its analysis."""
    finding = next((one for one in found.findings if one.kind == found.verdict.kind), None) if found else None
    gain = finding.estimated_speedup if finding else None
    rows = found.breakdown.per_rank if found else []
    return MeshTrial(
        cell=cell.name,
        job=cell.job,
        fault=cell.fault,
        expected=cell.ranks,
        verdict=found.verdict.kind if found else None,
        ranks=list(found.verdict.ranks) if found else [],
        sub_cause=finding.sub_cause if finding else None,
        step_ms=sum(row.step_ms for row in rows) / len(rows) if rows else None,
        speedup=gain.expected if gain else None,
        problem=problem,
    )


def gain_errors(trials: Sequence[MeshTrial]) -> list[float]:
    """Error of each predicted step, as a share of the measured step of the same job without a fault.

    Tokens of a popular expert go to the others when they are balanced: nothing is predicted for that.
    """
    clean = {trial.job: trial.step_ms for trial in trials if trial.fault == "none"}
    return [
        abs(trial.step_ms / trial.speedup / without - 1)
        for trial in trials
        if trial.fault != "none"
        and (trial.job, trial.fault) != ("experts", "uneven")
        and trial.right
        and trial.step_ms is not None
        and trial.speedup is not None
        and (without := clean.get(trial.job)) is not None
    ]


def summary(trials: Sequence[MeshTrial]) -> str:
    """The table of jobs by faults, and the targets."""
    lines = ["| job | fault | named | expected | right |", "|---|---|---|---|---|"]
    for one in trials:
        said = f"{one.verdict or one.problem} {rank_words(one.ranks) if one.ranks else ''}".strip()
        truth = "healthy" if one.fault == "none" else rank_words(one.expected) if one.expected else one.fault
        lines.append(f"| {one.job} | {one.fault} | {said} | {truth} | {'yes' if one.right else 'NO'} |")
    errors = gain_errors(trials)
    right = sum(one.right for one in trials)
    lines.append(f"\n{right} of {len(trials)} right")
    if errors:
        lines.append(f"predicted step against the clean job's: median {100 * median(errors):.1f} % off")
    return "\n".join(lines)
