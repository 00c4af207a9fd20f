"""Samples of the training thread's stack, some per second: function of the program, and part of the step."""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

import aorta
from aorta.artefacts.instrument_record import SampledFunction

SHORTEST_S, LONGEST_S = 0.04, 0.08
"""Times between two samples: at random, so that they do not follow the rhythm of the steps. The training
thread pays for about 17 samples per second with as many switches of the interpreter.
"""
MOST_PLACES = 40
FIRST_WRITE_S, WRITE_S = 1.0, 15.0
"""Seconds to the first report, and at most to the next one: a rank that is killed leaves the last report."""

Kind = Literal["own", "library", "hidden"]
_Key = tuple[str, str, str, bool]


class Sources:
    """Tells the program's own files from installed packages, torch, and the standard library."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        home = Path(aorta.__file__).parent
        hidden = {paths["stdlib"], paths["platstdlib"], home, Path(torch.__file__).parent}
        self._programs = f"{home / 'workloads'}/"
        """Programs that come with aorta are own ones, as those of a user are."""
        self._hidden = tuple(f"{folder}/" for folder in hidden)
        self._programs = f"{Path(aorta.__file__).parent / 'workloads'}/"
        self._known: dict[str, Kind] = {}

    def kind(self, file: str) -> Kind:
        """Return what a source file is: `own`, `library`, or `hidden` (torch, Python, ours)."""
        found = self._known.get(file)
        if found is None:
            found = self._known[file] = self._judge(file)
        return found

    def _judge(self, file: str) -> Kind:
        if file.startswith("<"):
            return "hidden"
        if file.startswith(self._programs):
            return "own"
        if "/site-packages/" in file or "/dist-packages/" in file:
            return "hidden" if file.startswith(self._hidden) and "/torch/" in file else "library"
        return "hidden" if file.startswith(self._hidden) else "own"


class Stacks:
    """Counts where the training thread is found.

    Args:
        thread: identity of the training thread.
        part: gives the part of a steady step that it is in; None outside of one.
    """

    def __init__(self, thread: int, part: Callable[[], str | None]) -> None:
        self._thread = thread
        self._part = part
        self._sources = Sources()
        self._lines: dict[_Key, Counter[int]] = {}
        self.parts: Counter[str] = Counter()
        self._slept = self._woke = 0.0

    def sample(self) -> None:
        """Look once."""
        part = self._part()
        frame = sys._current_frames().get(self._thread)
        if part is None or frame is None:
            return
        self.parts[part] += 1
        self.note(part, frame)

    def note(self, part: str, frame: FrameType | None) -> None:
        """Count the innermost frame of the program, and that of a package which the program calls."""
        package: FrameType | None = None
        while frame is not None:
            kind = self._sources.kind(frame.f_code.co_filename)
            if kind == "own":
                self._count(part, frame, package=False)
                break
            if kind == "library" and package is None:
                package = frame
            frame = frame.f_back
        if package is not None:
            self._count(part, package, package=True)

    def _count(self, part: str, frame: FrameType, *, package: bool) -> None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        key = (part, name, code.co_filename, package)
        self._lines.setdefault(key, Counter())[frame.f_lineno or code.co_firstlineno] += 1

    def places(self) -> list[SampledFunction]:
        """Return the functions that were found most often."""
        found = [
            SampledFunction(
                part=part,
                function=function,
                file=file,
                line=lines.most_common(1)[0][0],
                samples=lines.total(),
                package=package,
            )
            for (part, function, file, package), lines in list(self._lines.items())
        ]
        return sorted(found, key=lambda place: -place.samples)[:MOST_PLACES]

    @property
    def interval_ms(self) -> float:
        """Mean time between two looks."""
        return 1000 * self._slept / self._woke if self._woke else 0.0

    def slept(self, seconds: float) -> None:
        """Count the time since the look before."""
        self._slept += seconds
        self._woke += 1


class Sampler:
    """The thread that looks, until it is stopped.

    Args:
        stacks: what it fills.
        report: called every `WRITE_S` seconds.
        look: called at each sample, with the monotonic time in seconds.
    """

    def __init__(self, stacks: Stacks, report: Callable[[], None], look: Callable[[float], None]) -> None:
        self._stacks, self._report, self._look = stacks, report, look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aorta-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        chance = random.Random()  # noqa: S311 - not the program's generator, and no secret
        last = written = time.monotonic()
        next_s = FIRST_WRITE_S
        try:
            while not self._stop.wait(chance.uniform(SHORTEST_S, LONGEST_S)):
                now = time.monotonic()
                self._stacks.slept(now - last)
                last = now
                self._stacks.sample()
                self._look(now)
                if now - written > next_s:
                    written, next_s = now, min(2 * next_s, WRITE_S)
                    self._report()
        except Exception:  # noqa: S110 - a report without places is better than a message in the program's output
            pass
