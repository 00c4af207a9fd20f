"""Jobs that stand still on purpose, and slow ones that do not: does the watch find rank and kind, in time?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import runs
from aorta.errors import AortaError
from aorta.validation.resumable import RunOutcome, run_matrix
from aorta.validation.running import Analyse

WITHIN_S = 15.0
_ENDS_S = 240.0
_REPORT_S = 30.0
"""To end; the analysis is made here in any case."""
_POLL_S = 0.5
KINDS = {
    "sleeping": "host_stuck",
    "gil_held": "host_stuck",
    "call_missing": "host_stuck",
    "checkpoint_lock": "host_stuck",
    "other_collective": "other_collective",
    "loader": "loader_stuck",
    "killed": "incomplete",
}
"""Expected answer of the report for each case; for a killed rank, that the job did not complete."""
SLOW = ("compiling", "validating", "checkpointing")


@dataclass(frozen=True, slots=True)
class HangCell:
    """One run: what its rank does, on how many nodes."""

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
    """From the standstill until it was noticed; None: it was not."""
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Kind and rank are right, in time; of a slow run: nothing was noticed."""
        if self.case in SLOW:
            return self.verdict not in (None, "hang")
        if self.case == "killed":
            return self.verdict not in (None, "hang", "healthy")
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


def run_hangs(
    cells: Sequence[HangCell], folder: Path, analyse: Analyse, told: Callable[[HangTrial], None]
) -> list[HangTrial]:
    """Run what is not on record in `folder` yet, one after another, and return every trial."""
    return run_matrix(
        cells,
        folder / "hangs.jsonl",
        HangTrial,
        lambda cell: _run(cell, folder / cell.name, analyse),
        told,
    )


def _run(cell: HangCell, folder: Path, analyse: Analyse) -> HangTrial:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "aorta", "profile", "--nodes", str(cell.nodes)]
    command += ["--procs-per-node", str(cell.per_node), "--results", str(folder / "results")]
    command += ["--docs", str(folder / "docs"), "--profiler", "none", "--time", "00:05:00", "--"]
    command += ["-m", "aorta.workloads.hang", cell.case, str(cell.rank), str(folder)]
    with (folder / "output.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            seen_ns = _watch(child, folder)
        finally:
            _end(child)
    return _judged(cell, folder, seen_ns, analyse)


def _watch(child: subprocess.Popen[bytes], folder: Path) -> int | None:
    """When a node noticed the standstill; None where the run ended, or nothing was noticed."""
    limit = time.monotonic() + _ENDS_S
    while child.poll() is None and time.monotonic() < limit:
        for _, run in runs(folder / "results"):
            for _, node in run.nodes():
                if node.standstill.is_file():
                    time.sleep(2 * WITHIN_S / 10)  # the other nodes notice it about now
                    return time.time_ns()
        time.sleep(_POLL_S)
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(_REPORT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _judged(cell: HangCell, folder: Path, seen_ns: int | None, analyse: Analyse) -> HangTrial:
    began = folder / "standstill"
    after = None
    if seen_ns is not None and began.is_file():
        after = (_noticed_ns(folder) - int(began.read_text())) / 1e9
    found = next((run for _, run in runs(folder / "results")), None)
    if found is None:
        return _trial(cell, None, after, "the run left nothing")
    try:
        return _trial(cell, analyse(found), after, None)
    except AortaError as error:
        return _trial(cell, None, after, error.message)


def _noticed_ns(folder: Path) -> int:
    nodes = [node for _, run in runs(folder / "results") for _, node in run.nodes()]
    told = [read_json(node.standstill, NodeStandstill) for node in nodes if node.standstill.is_file()]
    return min(item.seen_wall_ns for item in told)


def _trial(cell: HangCell, made: Analysis | None, after: float | None, problem: str | None) -> HangTrial:
    hang = made.hang if made is not None else None
    return HangTrial(
        cell=cell.name,
        case=cell.case,
        nodes=cell.nodes,
        rank=cell.rank,
        verdict=made.verdict.kind if made is not None else None,
        kind=hang.kind if hang is not None else None,
        ranks=[item.rank for item in hang.ranks] if hang is not None else [],
        after_s=after,
        problem=problem,
    )


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
