"""The training process's end of the pipes to the process that writes its records."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import aorta
from aorta.artefacts.step_record import RankConstants
from aorta.instrument.wire import Frames, StepMeasurement, StepSummary, frame, packed, read_summary

log = logging.getLogger(__name__)

PIPE_BYTES = 1 << 20
"""Size of the pipe, where the system allows it: room for some hundred steps."""
BACKLOG_BYTES = 16 << 20
"""Bytes that may wait in this process in addition to the pipe, before the training waits."""
PATIENCE_S = 60.0
"""Seconds that the training waits for a writer that neither reads nor ends."""
WAKE_MS = 1000
_COMPANION = """
import sys
sys.path = [folder for folder in sys.path if folder] + [sys.argv.pop(1)]
from aorta.instrument.companion import main
sys.exit(main(sys.argv[1:]))
"""
"""Only the standard library and this package are visible to the writer, wherever the program runs."""
_NOT_BESIDE = ("LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP")
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class RecordChannel:
    """Hands measured steps over, and takes what comes back.

    A writer that ends early ends the recording, not the training: the reason is logged once, and the analysis
    sees the records end.

    Args:
        path: the record file; a file that is there is replaced.
        constants: the first thing to say.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, constants: RankConstants) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._frames = Frames()
        self._backlog: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._sent = self._answered = 0
        self._arrived: list[StepSummary] = []
        self._lost = False
        with path.open("wb", buffering=0) as stream:
            self._process = self._start(stream.fileno())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out, self._in = self._process.stdin.fileno(), self._process.stdout.fileno()
        for end in (self._out, self._in):
            os.set_blocking(end, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._hand_over(packed(constants))

    def _start(self, records: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", "-c", _COMPANION, str(Path(aorta.__file__).parents[1])]
        command += [str(records), str(self._path), str(os.getpid())]
        # Without what a profiler or the node agent put into this process.
        environment = {key: value for key, value in os.environ.items() if key not in _NOT_BESIDE}
        # Signals that end the rank must not end the writer before it has written: it inherits the mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[records],
                env=environment,
                bufsize=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def send(self, steps: Sequence[StepMeasurement]) -> None:
        """Hand steps over; waits only for a writer that is far behind."""
        if not self._lost and steps:
            self._sent += len(steps)
            self._hand_over(*(packed(step) for step in steps))

    def received(self) -> list[StepSummary]:
        """Summaries that came back since the last call."""
        self._take()
        arrived, self._arrived = self._arrived, []
        return arrived

    def settle(self) -> None:
        """Wait until every step that was handed over is in the file."""
        self._wait(lambda: self._answered < self._sent)

    def close(self) -> None:
        """Wait until everything is in the file, and for the writer to end."""
        self._hand_over(b"")
        self.settle()
        self._push()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lost = True  # whatever comes now: the numbers of the pipes may be those of other files

    # --- inside --------------------------------------------------------------------------------------------

    def _hand_over(self, *contents: bytes) -> None:
        data = b"".join(frame(content) for content in contents)
        self._backlog.append(memoryview(data))
        self._waiting_bytes += len(data)
        self._push()
        if self._waiting_bytes > BACKLOG_BYTES:
            self._wait(lambda: self._waiting_bytes > BACKLOG_BYTES)

    def _push(self) -> None:
        """Write what the pipe takes."""
        while self._backlog and not self._lost:
            try:
                count = os.write(self._out, self._backlog[0])
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            self._waiting_bytes -= count
            rest = self._backlog.popleft()[count:]
            if rest:
                self._backlog.appendleft(rest)

    def _take(self) -> None:
        """Read what has come back."""
        while not self._lost:
            try:
                data = os.read(self._in, PIPE_BYTES)
            except BlockingIOError:
                return
            if not data:
                if self._answered < self._sent:
                    self._lose()
                return
            for content in self._frames.feed(data):
                self._answered += 1
                self._arrived.append(read_summary(content))

    def _wait(self, unfinished: Callable[[], bool]) -> None:
        """Write and read while `unfinished`; a writer that does nothing for long is given up."""
        last, progress = time.monotonic(), -1
        while unfinished() and not self._lost:
            self._push()
            self._take()
            done = self._answered - self._waiting_bytes
            if done != progress:
                last, progress = time.monotonic(), done
            elif time.monotonic() - last > PATIENCE_S:
                self._process.kill()
                self._lose()
                return
            if unfinished() and not self._lost:
                waiter = select.poll()
                waiter.register(self._in, select.POLLIN)
                if self._backlog:
                    waiter.register(self._out, select.POLLOUT)
                waiter.poll(WAKE_MS)

    def _lose(self) -> None:
        self._lost = True
        self._backlog.clear()
        self._waiting_bytes = 0
        try:
            code: int | None = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        log.error(
            "%s: the process that writes this file %s; no more step records from this rank",
            self._path,
            "does not answer" if code is None else f"ended with exit code {code}",
        )
