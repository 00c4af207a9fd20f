"""Children of the agent: process groups, output, signals, exit codes. Nothing that was started here
outlives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import psutil

from aorta.artefacts.masking import here
from aorta.launch.lifeline import die_with

_PR_SET_CHILD_SUBREAPER = 36
_TAIL_LINES = 2000
_LONGEST_LINE = 1 << 20
MOST_COPIED_BYTES = 32 << 20
"""Limit of what is copied of one child's output. A rank's own output is kept whole in its own log."""
_KILL_ROUNDS = 50
_PAUSE_S = 0.1

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that none is lost sight of."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Child:
    """One program in a session and process group of its own.

    Args:
        argv: the program and its arguments.
        env: its whole environment.
        log: file that gets its output.
        echo: stream that gets the output as well, line by line; None for the file alone.
        keep: keep its recent output in `lines`, also without `echo`: the file may be on a full disk.

    What is copied is masked, and no more of it than `MOST_COPIED_BYTES` goes into the log and the echo.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        echo: BinaryIO | None = None,
        keep: bool = False,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.lines: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last of its output, where that is echoed or kept."""
        self._echo = echo
        copied = keep or echo is not None
        self._log = log.open("ab")
        try:
            self.process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if copied else self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # SIGTERM, not SIGKILL: torchrun still ends its ranks, a monitor still writes its status.
                # Safe: children are started before the thread that copies output.
                preexec_fn=die_with(os.getpid(), signal.SIGTERM),  # noqa: PLW1509
            )
        except BaseException:
            self._log.close()
            raise
        self._reader: threading.Thread | None = None
        if not copied:
            self._log.close()
        else:
            self._reader = threading.Thread(target=self._copy, name=f"output of {argv[0]}", daemon=True)
            self._reader.start()

    def _copy(self) -> None:
        """Copy output to the log and the job's own output; a full disk or a closed pipe must not stop the
        child.
        """
        assert self.process.stdout is not None
        targets = [self._log, self._echo]
        masker, left = here(), MOST_COPIED_BYTES
        while line := self.process.stdout.readline(_LONGEST_LINE):
            line = masker.line(line)
            self.lines.append(line.decode(errors="replace").rstrip("\n"))
            if left < 0:
                continue
            left -= len(line)
            if left < 0:
                line += b"\naorta: more output is not copied; the ranks' own logs have all of theirs\n"
            for index, target in enumerate(targets):
                if target is not None:
                    try:
                        target.write(line)
                        target.flush()
                    except (OSError, ValueError):
                        targets[index] = None
        with contextlib.suppress(OSError):
            self._log.close()

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self.process.pid

    def poll(self) -> int | None:
        """Exit code (negative: killed by that signal), None while it runs."""
        return self.process.poll()

    def signal(self, signum: signal.Signals) -> None:
        """Send `signum` to the child's group, if it is still there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def said(self, words: str) -> bool:
        """True if its recent output holds `words`, where the output is echoed or kept."""
        return any(words in line for line in list(self.lines))

    def stop(self, grace_s: float) -> int:
        """SIGTERM, wait for `grace_s`, then SIGKILL; the exit code."""
        if self.poll() is None:
            self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        if self.poll() is None:
            self.signal(signal.SIGKILL)
        code = self.process.wait()
        self.drain()
        return code

    def drain(self, timeout_s: float = 5.0) -> None:
        """Wait until the output is copied; a descendant that keeps it open is waited for only so long."""
        if self._reader is not None:
            self._reader.join(timeout_s)


def kill_descendants(spare: Sequence[int] = ()) -> int:
    """SIGKILL every descendant of this process but those in `spare` and theirs; the number killed.

    Ranks have sessions of their own, so no process group holds them all: the tree is walked until it is
    empty.
    """
    killed: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        found = _descendants(spare)
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed.add(process.pid)
        # Not psutil's own wait: it would reap our children and take their exit codes from Popen.
        time.sleep(_PAUSE_S)
    return len(killed)


def _descendants(spare: Sequence[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        if child.pid in spare:
            continue
        with contextlib.suppress(psutil.Error):
            found += child.children(recursive=True)
        found.append(child)
    return [process for process in found if _alive(process)]


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def decode_exit(code: int) -> tuple[int | None, str | None]:
    """(exit code, signal name) of a returned code.

    Negative means killed by that signal, so there is no exit code. 128 + n is what shells, profilers and
    programs that end themselves on a signal return: both are given.
    """
    if code < 0:
        return None, signal_name(-code)
    if code > 128 and code - 128 in signal.valid_signals():
        return code, signal_name(code - 128)
    return code, None


def exit_status(code: int) -> int:
    """The agent's exit status for a child's returned code: itself, or 128 + n for signal n."""
    return 128 - code if code < 0 else code


class Interrupts:
    """SIGTERM, SIGINT and SIGHUP, noted once; a later one changes nothing.

    SIGUSR1 and SIGUSR2 are ignored, here and (as ignoring is inherited) in torchrun: Slurm sends them to
    every process of a step, and only a program that asked for them should act on them.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Interrupts:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._before[signum] = signal.signal(signum, self._note)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            self._before[signum] = signal.signal(signum, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(signum)
