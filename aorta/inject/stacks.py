"""Samples of the training thread's stack, some per second: function of the program, and part of the step."""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

import aorta
from aorta.artefacts.instrument_record import SampledFunction

USUAL_S, SPARSE_S = 0.06, 0.25
"""Mean times between two samples: of the first ones, and of those in a long training. Each sample costs the
training thread a switch of the interpreter, about 0.1 ms where the host is the limit.
"""
SHARE = 0.01
"""Mean time to the next sample, as a share of the time that was sampled, between the two above: 17 per second
for 6 seconds, and 4 per second after 25.
"""
SPREAD = 1 / 3
"""Times are drawn this far around their mean, so that samples do not follow the rhythm of the steps."""
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
        self.known: dict[str, Kind] = {}
        """Files that were judged."""

    def kind(self, file: str) -> Kind:
        """Return what a source file is: `own`, `library`, or `hidden` (torch, Python, ours); keep it."""
        found = self.known[file] = self._judge(file)
        return found

    def _judge(self, file: str) -> Kind:
        if file.startswith("<"):
            return "hidden"
        if file.startswith(self._programs):
            return "own"
        if "/site-packages/" in file or "/dist-packages/" in file:
            return "hidden" if file.startswith(self._hidden) and "/torch/" in file else "library"
        return "hidden" if file.startswith(self._hidden) else "own"


class Found:
    """Samples of one function, in one part of the step.

    Args:
        sampled: False for a place that was noted each time something happened there.
    """

    __slots__ = ("lines", "sampled", "samples")

    def __init__(self, *, sampled: bool) -> None:
        self.sampled = sampled
        self.samples = 0
        self.lines: dict[int, float] = {}
        """Seconds that the samples of each line stand for; without samples, how often it was noted."""


class Stacks:
    """Finds where the training thread is. Each sample stands for the time since the look before it.

    Args:
        thread: identity of the training thread.
        part: gives the part of a steady step that it is in; None outside of one.
    """

    def __init__(self, thread: int, part: Callable[[], str | None]) -> None:
        self._thread = thread
        self._part = part
        self._sources = Sources()
        self._found: dict[_Key, Found] = {}
        self.parts: dict[str, int] = {}
        """Samples per part."""
        self._times_s: dict[str, float] = {}
        self.sampled_s = 0.0
        """Time that all samples stand for."""
        self._slept = self._woke = 0.0

    def sample(self, seconds: float) -> None:
        """Look once.

        Args:
            seconds: since the look before.
        """
        self._slept += seconds
        self._woke += 1
        part = self._part()
        if part is None:
            return
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return
        self.sampled_s += seconds
        self.parts[part] = self.parts.get(part, 0) + 1
        self._times_s[part] = self._times_s.get(part, 0.0) + seconds
        self.note(part, frame, seconds)

    def note(self, part: str, frame: FrameType | None, seconds: float | None = None) -> None:
        """Count the innermost frame of the program, and that of a package which the program calls.

        Args:
            part: of the step.
            frame: the innermost one.
            seconds: that a sample stands for. None if something happens there, without a sample.
        """
        package: FrameType | None = None
        known = self._sources.known
        while frame is not None:
            file = frame.f_code.co_filename
            kind = known.get(file) or self._sources.kind(file)
            if kind == "own":
                self._count(part, frame, seconds, package=False)
                break
            if kind == "library" and package is None:
                package = frame
            frame = frame.f_back
        if package is not None:
            self._count(part, package, seconds, package=True)

    def _count(self, part: str, frame: FrameType, seconds: float | None, *, package: bool) -> None:
        code = frame.f_code
        key = (part, getattr(code, "co_qualname", code.co_name), code.co_filename, package)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Found(sampled=seconds is not None)
        found.samples += 1
        line = frame.f_lineno or code.co_firstlineno
        found.lines[line] = found.lines.get(line, 0.0) + (1.0 if seconds is None else seconds)

    def places(self) -> list[SampledFunction]:
        """Return the places that were noted, and the functions that take the most time."""
        places = [
            SampledFunction(
                part=part,
                function=function,
                file=file,
                line=max(found.lines, key=found.lines.__getitem__),
                samples=found.samples,
                time_ms=1000 * sum(found.lines.values()) if found.sampled else None,
                package=package,
            )
            for (part, function, file, package), found in list(self._found.items())
        ]
        # Noted places are few, and none of them has a time.
        places.sort(key=lambda place: (place.time_ms is not None, -(place.time_ms or 0.0), -place.samples))
        return places[:MOST_PLACES]

    @property
    def interval_ms(self) -> float:
        """Mean time between two looks."""
        return 1000 * self._slept / self._woke if self._woke else 0.0

    def times_ms(self) -> dict[str, float]:
        """Return the time that the samples of each part stand for."""
        return {part: 1000 * seconds for part, seconds in list(self._times_s.items())}


class Sampler:
    """The thread that looks, until it is stopped.

    Args:
        stacks: what it fills.
        report: called every `WRITE_S` seconds.
        look: called at each sample, with the monotonic time in seconds.
    """

    def __init__(self, stacks: Stacks, report: Callable[[], None], look: Callable[[float], None]) -> None:
        self._stacks, self._report, self._look = stacks, report, look
        self._going = threading.Lock()
        """Held until the thread has to end: a thread that waits for it runs no Python when it wakes."""
        self._going.acquire()
        self._thread = threading.Thread(target=self._run, name="aorta-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if self._going.locked():
            self._going.release()
        self._thread.join(1.0)

    def _run(self) -> None:
        chance = random.Random().random  # noqa: S311 - not the program's generator, and no secret
        stacks, look, stopped, clock = self._stacks, self._look, self._going.acquire, time.monotonic
        last = written = clock()
        next_s = FIRST_WRITE_S
        try:
            while not stopped(timeout=next_look_s(stacks.sampled_s, chance())):
                now = clock()
                stacks.sample(now - last)
                last = now
                look(now)
                if now - written > next_s:
                    written, next_s = now, min(2 * next_s, WRITE_S)
                    self._report()
        except Exception:  # noqa: S110 - a report without places is better than a message in the program's output
            pass


def next_look_s(sampled_s: float, chance: float) -> float:
    """Return the time to the next sample.

    Args:
        sampled_s: time that was sampled.
        chance: a random number from 0 to 1.
    """
    mean = min(max(SHARE * sampled_s, USUAL_S), SPARSE_S)
    return mean * (1 - SPREAD + 2 * SPREAD * chance)
