"""Writes Chrome's trace-event JSON, which Perfetto opens, an event at a time.

Source: "Trace Event Format" (the document that Chromium and Perfetto refer to). `ts` and `dur` are µs; three
decimals keep every ns.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from aorta.artefacts.events import Column

_BLOCK = 1 << 12
"""Number of events that are written at once."""


def text(value: str) -> str:
    """A string as JSON."""
    return msgspec.json.encode(value).decode()


def us(ns: int) -> str:
    """Nanoseconds as µs with three decimals, exactly."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


class ChromeTrace:
    """An open file: processes and threads are numbered and named as they are first used."""

    def __init__(self, stream: BinaryIO, zero_ns: int) -> None:
        self.zero_ns = zero_ns
        self.events = 0
        self._stream = stream
        self._pending: list[str] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def process(self, name: str) -> int:
        """The number of a process, in the order of first use, which is that of display."""
        if name not in self._processes:
            number = self._processes[name] = len(self._processes) + 1
            self._metadata("process_name", number, 0, f'"name":{text(name)}')
            self._metadata("process_sort_index", number, 0, f'"sort_index":{number}')
        return self._processes[name]

    def thread(self, process: int, name: str) -> int:
        """The number of a thread of a process."""
        key = (process, name)
        if key not in self._threads:
            number = self._threads[key] = len(self._threads) + 1
            self._metadata("thread_name", process, number, f'"name":{text(name)}')
            self._metadata("thread_sort_index", process, number, f'"sort_index":{number}')
        return self._threads[key]

    def _metadata(self, kind: str, process: int, thread: int, arguments: str) -> None:
        self.add(f'{{"ph":"M","name":"{kind}","pid":{process},"tid":{thread},"args":{{{arguments}}}}}')

    def slice(
        self,
        where: tuple[int, int],
        name: str,
        category: str,
        span: tuple[int, int],
        arguments: str = "",
    ) -> None:
        """Something that took from span[0] to span[1] (wall-clock ns); `name` and `arguments` are JSON."""
        more = f',"args":{{{arguments}}}' if arguments else ""
        self.add(
            f'{{"ph":"X","cat":"{category}","name":{name},"pid":{where[0]},"tid":{where[1]},'
            f'"ts":{us(span[0] - self.zero_ns)},"dur":{us(span[1] - span[0])}{more}}}'
        )

    def arrow(self, number: int, source: tuple[int, int, int], target: tuple[int, int, int]) -> None:
        """From a slice to the one that it caused; each by process, thread and start (wall-clock ns)."""
        for phase, bind, (process, thread, at) in (("s", "", source), ("f", ',"bp":"e"', target)):
            self.add(
                f'{{"ph":"{phase}"{bind},"cat":"launch","name":"launch","id":{number},"pid":{process},'
                f'"tid":{thread},"ts":{us(at - self.zero_ns)}}}'
            )

    def counter(self, process: int, name: str, unit: str, at: int, value: float) -> None:
        """A value of a counter from `at` (wall-clock ns) on; viewers name the track by name and unit."""
        self.add(
            f'{{"ph":"C","name":{text(name)},"pid":{process},"tid":0,"ts":{us(at - self.zero_ns)},'
            f'"args":{{{text(unit)}:{value!r}}}}}'
        )

    def add(self, event: str) -> None:
        """An event as JSON."""
        self._pending.append(event)
        if len(self._pending) >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if self._pending:
            lead = ",\n" if self.events else ""
            self._stream.write((lead + ",\n".join(self._pending)).encode())
            self.events += len(self._pending)
            self._pending.clear()


@contextlib.contextmanager
def open_chrome(path: Path, zero_ns: int, about: dict[str, Any]) -> Iterator[ChromeTrace]:
    """The trace in `path`, compressed if it ends in `.gz`; it appears there when it is whole.

    Args:
        path: the file to write.
        zero_ns: wall-clock ns that its times count from.
        about: what is said of the trace as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            with contextlib.ExitStack() as stack:
                stream: Any = raw
                if path.suffix == ".gz":
                    stream = stack.enter_context(gzip.GzipFile("", "wb", 4, raw, mtime=0))
                head = {"displayTimeUnit": "ns", "baseTimeNanoseconds": zero_ns, "otherData": about}
                stream.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n')
                trace = ChromeTrace(stream, zero_ns)
                yield trace
                trace.flush()
                stream.write(b"\n]}\n")
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(raw.fileno(), 0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def lanes(start: Column, end: Column) -> list[int]:
    """A lane for each slice, sorted by start: on a lane slices nest or follow each other, as a thread's must.

    Slices of one start must be sorted by end, the longest first.
    """
    if len(start) == 0 or bool((start[1:] >= np.maximum.accumulate(end)[:-1]).all()):
        return [0] * len(start)
    found: list[int] = []
    open_until: list[list[int]] = []
    for begin, stop in zip(start.tolist(), end.tolist(), strict=True):
        for lane, stack in enumerate(open_until):
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or stop <= stack[-1]:
                stack.append(stop)
                found.append(lane)
                break
        else:
            open_until.append([stop])
            found.append(len(open_until) - 1)
    return found
