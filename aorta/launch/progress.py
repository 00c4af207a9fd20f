"""Progress of a run by the files that it writes: from the agents' start to the last trace that is saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import NodeStatus, Planned
from aorta.errors import ArtefactError

Phase = Literal["starting agents", "starting ranks", "training", "saving"]

_TAIL_BYTES = 64 << 10
"""Enough for some records; of longer ones more is read."""
_LONGEST_TAIL = 16 << 20


class _Line(msgspec.Struct):
    """Fields of a step record that progress needs."""

    global_step: int
    wall_end_ns: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run. None if not known.

    Attributes:
        phase: what the run does now.
        steps: steps that rank 0 has on record.
        total: steps that the trainer is to make; a program of the user's own does not say.
        step_s: seconds per step, over the newest records.
    """

    phase: Phase
    steps: int = 0
    total: int | None = None
    step_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step, if the steps stay as long as they are."""
        if self.total is None or self.step_s is None or self.phase != "training":
            return None
        return max(self.total - self.steps, 0) * self.step_s

    @property
    def words(self) -> str:
        """Steps of the total, or what is done before and after them."""
        return self.count if self.phase == "training" else self.phase

    @property
    def count(self) -> str:
        """Steps of the total, where it is known."""
        return f"{self.steps}/{self.total}" if self.total is not None else str(self.steps)


def read_progress(run: RunDir) -> RunProgress:
    """Progress of the run in `run`. A file that is missing or broken is skipped."""
    if not run.node(0).status.exists():
        return RunProgress("starting agents")
    lines = _newest(run.records(0))
    total = _total(run)
    if not lines:
        return RunProgress("saving" if _is_saving(run) else "starting ranks", total=total)
    first, last = lines[0], lines[-1]
    steps = last.global_step + 1
    over = last.global_step - first.global_step
    step_s = (last.wall_end_ns - first.wall_end_ns) / over / 1e9 if over > 0 else None
    ended = _is_saving(run) or (total is not None and steps >= total)
    return RunProgress("saving" if ended else "training", steps, total, step_s)


def _total(run: RunDir) -> int | None:
    try:
        return read_json(run.planned, Planned).steps
    except ArtefactError:
        return None


def _is_saving(run: RunDir) -> bool:
    try:
        status = read_json(run.node(0).status, NodeStatus)
    except ArtefactError:
        return False
    return status.saving or status.state != "running"


def _newest(path: Path) -> list[_Line]:
    """The newest records of one attempt that can be read, oldest first; none without a file."""
    size = _TAIL_BYTES
    while True:
        try:
            with path.open("rb") as stream:
                length = stream.seek(0, 2)
                stream.seek(max(length - size, 0))
                text = stream.read(size)
        except OSError:
            return []
        # What is before the first line end belongs to a line that is not all here.
        whole = text.split(b"\n")[0 if length <= size else 1 : -1]
        if len(whole) > 1 or length <= size or size >= _LONGEST_TAIL:
            break
        size *= 8
    found: list[_Line] = []
    for line in whole:
        try:
            found.append(msgspec.json.decode(line, type=_Line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return [line for line in found if line.attempt == found[-1].attempt]
