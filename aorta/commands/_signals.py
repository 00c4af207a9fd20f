"""Signals that end what runs on this machine, and the terminal that goes away with one of them."""

from __future__ import annotations

import errno
import os
import signal
import sys
import termios
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """While this is entered, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does.

    A signal that is ignored already (SIGHUP under nohup) stays ignored.

    Attributes:
        number: the first signal that came. None if none has.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> EndingSignals:
        """Install the handlers."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Keep signals back until `release`: what is being made could not be ended yet."""
        self._held = True

    def release(self) -> None:
        """Raise KeyboardInterrupt for what came meanwhile, and from now on at once."""
        self._held = False
        if self.number is not None:
            raise KeyboardInterrupt

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        if number == signal.SIGHUP:
            _leave_dead_terminal()
        if not self._held:
            raise KeyboardInterrupt


def _leave_dead_terminal() -> None:
    """After a hang-up every write to the terminal fails; what is still to be said then goes nowhere."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None:
            continue
        try:
            termios.tcgetattr(stream.fileno())
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
