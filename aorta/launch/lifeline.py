"""Ends processes with the one that they belong to, even if that one is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with(parent: int, signum: signal.Signals) -> Callable[[], None]:
    """A function that a child runs before its program. It has `signum` sent to the child when `parent`, its
    parent, dies, also if the parent is already dead.
    """

    def prepare() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signum)

    return prepare
