"""Deadlines on the monotonic clock, and waiting for the next one without missing a signal."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from types import FrameType, TracebackType

from aorta.units import NS_PER_S

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True)
class Cadence:
    """Deadline k is `start_ns + k * interval_ns`: a late wake-up does not shift later ones.

    `samples + missed` is the number of deadlines that have passed; missed ones are counted, not made up.
    """

    start_ns: int
    interval_ns: int
    samples: int = 0
    missed: int = 0
    max_late_ns: int = 0

    @property
    def deadline_ns(self) -> int:
        """The next deadline."""
        return self.start_ns + (self.samples + self.missed) * self.interval_ns

    def woke(self, now_ns: int) -> None:
        """A sample is taken at `now_ns`, at or after the deadline; deadlines that passed meanwhile are
        missed.
        """
        late = now_ns - self.deadline_ns
        self.max_late_ns = max(self.max_late_ns, late)
        self.missed += late // self.interval_ns
        self.samples += 1


class DeadlineSleeper:
    """Sleeps until a deadline, and ends the sleep at once when a signal says stop or the parent process is
    gone.

    Args:
        parent_pid: the process to stop with; None to go on without one.
    """

    def __init__(self, parent_pid: int | None = None) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._parent_pid = parent_pid
        self._parent_gone = False
        self._pidfd = self._open_parent(parent_pid) if parent_pid is not None else None
        # nohup and a shell's background jobs ignore the other two on purpose; SIGTERM always stops us.
        ignored = {n for n in STOP_SIGNALS if signal.getsignal(n) == signal.SIG_IGN} - {signal.SIGTERM}
        self._previous = {n: signal.signal(n, _noted) for n in STOP_SIGNALS if n not in ignored}
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def __enter__(self) -> DeadlineSleeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def wait_until(self, deadline_ns: int) -> str | None:
        """Return None at the deadline, or `signal` or `parent` as soon as there is a reason to stop."""
        watched: list[int] = [self._reader.fileno()]
        if self._pidfd is not None:
            watched.append(self._pidfd)
        while True:
            left = deadline_ns - time.monotonic_ns()
            ready, _, _ = select.select(watched, (), (), max(left, 0) / NS_PER_S)
            if self._reader.fileno() in ready and set(self._reader.recv(64)) & set(STOP_SIGNALS):
                return "signal"
            if self._pidfd in ready or self._orphaned():
                return "parent"
            if left <= 0 or time.monotonic_ns() >= deadline_ns:
                return None

    def _open_parent(self, pid: int) -> int | None:
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            self._parent_gone = True
        except OSError:  # a kernel before 5.3: _orphaned looks once an interval instead
            pass
        return None

    def _orphaned(self) -> bool:
        if self._pidfd is not None or self._parent_pid is None:
            return False
        if not self._parent_gone:
            try:
                os.kill(self._parent_pid, 0)
            except ProcessLookupError:
                self._parent_gone = True
            except PermissionError:
                pass
        return self._parent_gone


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has told already; a handler must exist for it to be told."""
