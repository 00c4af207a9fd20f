"""How processes end with the one that they belong to, also when that one is killed and can tell nobody."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_STATE, _START = 0, 19
"""Places in /proc/<pid>/stat behind the name (proc(5)): the state, and the start in ticks since boot."""


def die_with(parent: int, signum: signal.Signals) -> Callable[[], None]:
    """What a child runs before its program: be sent `signum` when `parent`, its parent, dies, also if it is
    already dead.
    """

    def prepare() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signum)

    return prepare


def started(pid: int) -> int | None:
    """When the process `pid` started, in clock ticks since boot; None where there is none that still runs.

    Together with the id this is one process for good: ids are given again, and wall clocks are set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in {"Z", "X"} else int(fields[_START])
