"""Who still lives, and who dies with whom."""

import os
import signal
import subprocess
import sys

from aorta.artefacts.processes import started
from aorta.launch.lifeline import die_with


def test_a_process_that_runs_has_one_start() -> None:
    own = started(os.getpid())
    assert own is not None
    assert started(os.getpid()) == own
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        later = started(child.pid)
        assert later is not None
        assert later >= own
    finally:
        child.communicate(b"\n")
    assert started(child.pid) is None


def test_what_has_ended_and_is_not_reaped_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert started(child.pid) is None
    child.wait()


def test_a_child_whose_parent_is_gone_already_is_told() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        preexec_fn=die_with(os.getpid(), signal.SIGTERM),  # noqa: PLW1509
    )
    child.communicate(b"\n")
    assert child.returncode == 0
    orphan = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        preexec_fn=die_with(os.getpid() + 1, signal.SIGTERM),  # noqa: PLW1509
    )
    orphan.communicate(b"\n")
    assert orphan.returncode == -signal.SIGTERM
