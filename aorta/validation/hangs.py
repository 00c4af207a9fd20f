"""Jobs that stand still on purpose, and slow ones that do not: does the watch find rank and kind, in time?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import runs
from aorta.validation.resumable import RunOutcome, analysed_run, launch_words, run_matrix
from aorta.validation.running import Analyse

WITHIN_S = 15.0
KINDS = {
    "sleeping": "host_stuck",
    "gil_held": "host_stuck",
    "call_missing": "host_stuck",
    "checkpoint_lock": "host_stuck",
    "other_collective": "other_collective",
    "other_size": "incomplete",
    "loader": "loader_stuck",
    "killed": "incomplete",
}
"""Expected answer of the report for each case; `incomplete`: the job ends at once and does not complete.

gloo ends a job whose ranks call with different sizes. NCCL waits.
"""
SLOW = ("compiling", "validating", "checkpointing")


@dataclass(frozen=True, slots=True)
class HangCell:
    """One run: the fault of its rank and the number of nodes."""

    case: str
    nodes: int
    per_node: int
    rank: int
    turn: int

    @property
    def name(self) -> str:
        """Unique within the matrix."""
        return f"{self.case}_{self.nodes}x{self.per_node}_rank{self.rank}_{self.turn}"


class HangTrial(RunOutcome, frozen=True, kw_only=True):
    """Result of one run; a line of `hangs.jsonl`."""

    case: str
    nodes: int
    rank: int
    verdict: str | None
    kind: str | None
    ranks: list[int]
    after_s: float | None
    """Seconds from the standstill until it was noticed; None if it was not."""
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Kind and rank are right, in time; of a slow run: nothing was noticed."""
        if self.case in SLOW:
            return self.verdict not in (None, "hang") and self.after_s is None
        if KINDS[self.case] == "incomplete":
            return self.verdict == "incomplete"
        known = self.kind == KINDS[self.case] and self.ranks == [self.rank]
        return known and self.after_s is not None and self.after_s <= WITHIN_S


def hang_matrix(repeats: int = 3) -> list[HangCell]:
    """All cases on 1, 2 and 4 nodes, with other ranks in each repeat."""
    shapes = ((1, 2), (2, 1), (4, 1))
    return [
        HangCell(case, nodes, per_node, (1 + turn) % (nodes * per_node), turn)
        for turn in range(repeats)
        for nodes, per_node in shapes
        for case in (*KINDS, *SLOW)
    ]


Execute = Callable[[HangCell, Path, Sequence[str], Callable[[], bool]], None]
"""Runs a cell in its folder and waits for its end. Takes the options and program of `aorta profile` or
`submit`, and a function that is true once all nodes have noticed the standstill; the run may then end."""


def run_hangs(
    cells: Sequence[HangCell],
    folder: Path,
    execute: Execute,
    analyse: Analyse,
    told: Callable[[HangTrial], None],
) -> list[HangTrial]:
    """Run what is not on record in `folder` yet, one after another, and return every trial."""
    return run_matrix(
        cells,
        folder / "hangs.jsonl",
        HangTrial,
        lambda cell: _run(cell, folder / cell.name, execute, analyse),
        told,
    )


def _run(cell: HangCell, folder: Path, execute: Execute, analyse: Analyse) -> HangTrial:
    folder.mkdir(parents=True, exist_ok=True)
    program = ("aorta.workloads.hang", cell.case, cell.rank, folder)
    words = launch_words(folder, cell.nodes, cell.per_node, program)
    execute(cell, folder, words, lambda: len(_told(folder)) == cell.nodes)
    return _judged(cell, folder, analyse)


def _told(folder: Path) -> list[Path]:
    nodes = [node for _, run in runs(folder / "results") for _, node in run.nodes()]
    return [node.standstill for node in nodes if node.standstill.is_file()]


def _judged(cell: HangCell, folder: Path, analyse: Analyse) -> HangTrial:
    began, noticed = folder / "standstill", _told(folder)
    after = None
    if len(noticed) == cell.nodes and began.is_file():
        seen_ns = max(read_json(path, NodeStandstill).seen_wall_ns for path in noticed)
        after = (seen_ns - int(began.read_text())) / 1e9
    found = analysed_run(folder, analyse)
    return _trial(cell, None, after, found) if isinstance(found, str) else _trial(cell, found, after, None)


def _trial(cell: HangCell, made: Analysis | None, after: float | None, problem: str | None) -> HangTrial:
    hang = made.hang if made is not None else None
    return HangTrial(
        cell=cell.name,
        case=cell.case,
        nodes=cell.nodes,
        rank=cell.rank,
        verdict=made.verdict.kind if made is not None else None,
        kind=hang.kind if hang is not None else None,
        ranks=_ranks(made),
        after_s=after,
        problem=problem,
    )


def _ranks(made: Analysis | None) -> list[int]:
    if made is None:
        return []
    return [item.rank for item in made.hang.ranks] if made.hang is not None else made.verdict.ranks


def summary(trials: Sequence[HangTrial]) -> str:
    """A line per case, and the totals."""
    lines = []
    for case in (*KINDS, *SLOW):
        own = [trial for trial in trials if trial.case == case]
        times = [trial.after_s for trial in own if trial.after_s is not None]
        within = f", noticed after {min(times):.0f} to {max(times):.0f} s" if times else ""
        lines.append(f"{case}: {sum(trial.right for trial in own)} of {len(own)} right{within}")
    hung = [trial for trial in trials if trial.case not in SLOW]
    slow = [trial for trial in trials if trial.case in SLOW]
    lines.append(f"standstills: {sum(trial.right for trial in hung)} of {len(hung)} right")
    lines.append(f"slow runs: {sum(not trial.right for trial in slow)} false alarms in {len(slow)}")
    return "\n".join(lines)
