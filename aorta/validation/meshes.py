"""Jobs that are meshes, with known faults: does the analysis name kind, rank or stage, and gain?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import runs
from aorta.averages import median
from aorta.units import rank_words
from aorta.validation.resumable import RunOutcome, analysed_run, launch_words, run_matrix
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
    "all_to_all": ("slow_rank",),
    "tp": ("slow_rank",),
    "dp_tp": ("slow_rank",),
    "ddp_buffers": ("slow_rank",),
}
RECORDED = {
    "gpipe": "slow_stage",
    "1f1b": "slow_stage",
    "ddp_pp": "slow_stage",
    "all_to_all": "slow_rank",
    "tp": "slow_rank",
    "dp_tp": "slow_rank",
    "ddp_buffers": "slow_rank",
}
"""Jobs whose calls only a recorder of all of `torch.distributed` sees, and one fault of each."""
_CULPRITS = (2, 1)
_LINKS: dict[str, tuple[tuple[int, int], ...]] = {
    "gpipe": ((1, 2), (2, 3)),
    "1f1b": ((1, 2), (0, 1)),
    "ddp_pp": ((0, 2), (1, 3)),
    "fsdp_tp": ((2, 3), (0, 1)),
}
"""Ranks that exchange much: neighbouring stages, or a tensor group."""
SLOW_LINK_BIT_S = 1_000_000
NAMESPACES = "AORTA_MESH_NAMESPACES"
"""Tells the program the prefix of its ranks' network namespaces (`aorta.workloads.mesh`)."""

Network = Callable[[int, tuple[int, int], int], AbstractContextManager[str]]
"""Joins a number of ranks with a limit (bit/s) on the link between two; gives the prefix of namespaces."""


@dataclass(frozen=True, slots=True)
class MeshCell:
    """One run: a job, what is wrong with it, and with which rank."""

    job: str
    fault: str
    rank: int
    link: tuple[int, int] | None = None
    """The ranks between which the link is slow."""

    @property
    def name(self) -> str:
        """Unique within the matrix."""
        if self.link is not None:
            return f"{self.job}_{self.fault}_{self.link[0]}_{self.link[1]}"
        return f"{self.job}_{self.fault}_rank{self.rank}"

    @property
    def ranks(self) -> list[int]:
        """The ranks to name."""
        if self.link is not None:
            return list(self.link)
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
        if self.fault == "slow_link":
            return (self.verdict, self.ranks, self.sub_cause) == ("communication", self.expected, "slow_link")
        if self.verdict != "straggler" or self.ranks != self.expected:
            return False
        uneven = "uneven_experts" if self.job == "experts" else "uneven_microbatches"
        return self.fault != "uneven" or self.sub_cause == uneven


def mesh_matrix(*, links: bool) -> list[MeshCell]:
    """Returns every job without a fault, and each of its faults with two culprits.

    Uneven microbatches have no culprit.

    Args:
        links: with slow links, which need network namespaces.
    """
    cells = [MeshCell(job, "none", 0) for job in _FAULTS]
    for job, faults in _FAULTS.items():
        for fault in faults:
            alone = fault == "uneven" and job != "experts"
            cells += [MeshCell(job, fault, rank) for rank in (_CULPRITS[:1] if alone else _CULPRITS)]
    for job, pairs in _LINKS.items():
        cells += [MeshCell(job, "slow_link", link[0], link) for link in pairs if links]
    return cells


def recorded_matrix() -> list[MeshCell]:
    """Each of `RECORDED` without a fault and with its fault."""
    clean = {job: MeshCell(job, "none", 0) for job in RECORDED}
    faulty = {job: MeshCell(job, fault, _CULPRITS[0]) for job, fault in RECORDED.items()}
    return [cell for job in RECORDED for cell in (clean[job], faulty[job])]


def run_meshes(
    cells: Sequence[MeshCell],
    folder: Path,
    analyse: Analyse,
    told: Callable[[MeshTrial], None],
    network: Network | None = None,
) -> list[MeshTrial]:
    """Run what is not on record in `folder` yet, one after another, and return every trial.

    Args:
        cells: the matrix.
        folder: of the runs.
        analyse: makes the analysis of a run.
        told: each new result.
        network: makes slow links.
    """
    return run_matrix(
        cells,
        folder / "meshes.jsonl",
        MeshTrial,
        lambda cell: _run(cell, folder / cell.name, analyse, network),
        told,
    )


def analyse_meshes(cells: Sequence[MeshCell], folder: Path, analyse: Analyse) -> list[MeshTrial]:
    """Analyse the runs that are in `folder` again, keep the results, and return them."""
    kept = [cell for cell in cells if any(True for _ in runs(folder / cell.name / "results"))]
    record = folder / "meshes.jsonl"
    record.unlink(missing_ok=True)
    return run_matrix(
        kept,
        record,
        MeshTrial,
        lambda cell: _analysed(cell, folder / cell.name, analyse, None),
        lambda _: None,
    )


def _run(cell: MeshCell, folder: Path, analyse: Analyse, network: Network | None) -> MeshTrial:
    folder.mkdir(parents=True, exist_ok=True)
    made: AbstractContextManager[str | None] = nullcontext()
    if cell.link is not None and network is not None:
        made = network(RANKS, cell.link, SLOW_LINK_BIT_S)
    with made as prefix:
        problem = _executed(cell, folder, prefix)
    return _analysed(cell, folder, analyse, problem)


def _executed(cell: MeshCell, folder: Path, namespaces: str | None) -> str | None:
    """Run a cell and return what went wrong. None if nothing did."""
    program = ("aorta.workloads.mesh", cell.job, cell.fault, cell.rank)
    command = [sys.executable, "-m", "aorta", "profile", *launch_words(folder, 1, RANKS, program)]
    environment = dict(os.environ) if namespaces is None else {**os.environ, NAMESPACES: namespaces}
    with (folder / "output.log").open("wb") as log:
        try:
            subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, timeout=_ENDS_S, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {_ENDS_S:.0f} s"
    return None


def _analysed(cell: MeshCell, folder: Path, analyse: Analyse, problem: str | None) -> MeshTrial:
    found = analysed_run(folder, analyse)
    if isinstance(found, str):
        return trial_of(cell, None, problem or found)
    return trial_of(cell, found, problem)


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
    """Error of each predicted step, as a share of the measured step of the same job without a fault."""
    clean = {trial.job: trial.step_ms for trial in trials if trial.fault == "none"}
    return [
        abs(trial.step_ms / trial.speedup / without - 1)
        for trial in trials
        if trial.fault != "none"
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
        lines.append(f"predicted step time against the clean job: median error {100 * median(errors):.1f} %")
    return "\n".join(lines)
