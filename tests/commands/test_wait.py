"""When `aorta wait` asks Slurm: seldom, and at once when the files of a job say that it has ended."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from aorta.artefacts.layout import RunDir
from aorta.commands import wait
from aorta.launch.follow import FollowedJob, Follower
from aorta.launch.tools import ToolAnswer
from tests.support.markers import write_marker
from tests.support.slurm import cluster


class Clock:
    """Time that passes only in `sleep`; at `ends_s` the agents of the job write how it ended."""

    def __init__(self, run: RunDir, ends_s: float | None) -> None:
        self.now, self._run, self._ends_s = 0.0, run, ends_s

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._ends_s is not None and self.now >= self._ends_s:
            write_marker(self._run, 0, "completed")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("ends_s", "asked_at"),
    [
        # Pauses of 2, 3, 4.5, 6.75, 10.1 s; the files say it at 18 s: asked then, and 2 s later.
        (18.0, [0.0, 2.0, 5.0, 9.5, 16.25, 18.25, 20.25]),
        (None, [0.0, 2.0, 5.0, 9.5, 16.25, 26.375, 41.5625]),
    ],
)
def test_slurm_is_asked_when_the_files_say_that_a_job_ended(
    terminal: bool,
    ends_s: float | None,
    asked_at: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunDir(tmp_path / "run_5")
    clock, asked = Clock(run, ends_s), []

    def squeue(argv: object) -> ToolAnswer:
        asked.append(clock.now)
        # Slurm itself needs a moment: the first question after the end is too early.
        state = "COMPLETED" if len(asked) == len(asked_at) else "RUNNING"
        return ToolAnswer(0, f"5|{state}|0:02|1|n|None\n")

    monkeypatch.setattr(wait, "time", clock)
    follower = Follower([FollowedJob("5", "1node", 1, run)], cluster(squeue=squeue))
    wait.watch(follower, Console(file=io.StringIO(), force_terminal=terminal), None)
    assert asked == pytest.approx(asked_at)
    assert follower.all_completed
