"""`aorta validate --hangs`: jobs that stand still on purpose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aorta.commands._say import say
from aorta.errors import PlanError
from aorta.validation.hangs import SLOW, WITHIN_S, HangCell, HangTrial, hang_matrix, run_hangs, summary

_ENDS_S = 240.0
_REPORT_S = 30.0
"""To end; the analysis is made here in any case."""
_POLL_S = 1.0
_OTHERS_S = WITHIN_S / 5
"""Until the other nodes have noticed a standstill, too."""


def validate_hangs(folder: Path, *, small: bool, slurm: bool) -> int:
    """Run the matrix of standstills and print its table. Exit status 0: at least 95 % right, no false alarm.

    Args:
        folder: of the runs; one that has some goes on.
        small: one run per case, on one node.
        slurm: run jobs of the cluster; else on this machine.
    """
    from aorta.commands._validation import analyse

    cells = [cell for cell in hang_matrix(1) if cell.nodes == 1] if small else hang_matrix()
    say(f"{len(cells)} runs; to continue after an interruption: add --into {folder}")

    def tell(trial: HangTrial) -> None:
        noticed = "not noticed" if trial.after_s is None else f"noticed after {trial.after_s:.1f} s"
        right = "right" if trial.right else "WRONG"
        said = trial.verdict or trial.problem
        say(f"{trial.cell}: {right}: {said} {trial.kind or ''} {trial.ranks or ''}, {noticed}")

    trials = run_hangs(cells, folder.resolve(), _job if slurm else _here, analyse, tell)
    say(summary(trials))
    hung = [trial.right for trial in trials if trial.case not in SLOW]
    slow = [trial.right for trial in trials if trial.case in SLOW]
    return 0 if sum(hung) >= 0.95 * len(hung) and all(slow) else 1


def _here(cell: HangCell, folder: Path, words: Sequence[str], noticed: Callable[[], bool]) -> None:
    """Run a cell by `aorta profile`; end it when its standstill is noticed."""
    del cell
    command = [sys.executable, "-m", "aorta", "profile", *words]
    with (folder / "output.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait(lambda: child.poll() is not None, noticed)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                try:
                    child.wait(_REPORT_S)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def _job(cell: HangCell, folder: Path, words: Sequence[str], noticed: Callable[[], bool]) -> None:
    """Run a cell by `aorta submit`; cancel its job when its standstill is noticed."""
    from aorta.launch import slurm
    from aorta.launch.follow import FollowedJob, Follower
    from aorta.launch.tools import call

    command = [sys.executable, "-m", "aorta", "submit", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "output.log").write_text(done.stderr + done.stdout)
    if done.returncode:
        raise PlanError(f"{cell.name} was not submitted", f"read {folder / 'output.log'}")
    job_id = str(json.loads(done.stdout)["jobs"][0]["job_id"])
    follower = Follower([FollowedJob.by_hand(folder / "results", job_id)], call)

    def ended() -> bool:
        follower.poll()
        return not follower.going

    try:
        if _wait(ended, noticed):
            return
    finally:
        if follower.going:
            slurm.cancel([job_id], call)
    _wait(ended, lambda: False)


def _wait(ended: Callable[[], bool], noticed: Callable[[], bool]) -> bool:
    """True if the run ended by itself; false where its standstill was noticed, or it takes too long."""
    limit = time.monotonic() + _ENDS_S
    while time.monotonic() < limit:
        if ended():
            return True
        if noticed():
            time.sleep(_OTHERS_S)
            return False
        time.sleep(_POLL_S)
    return False
