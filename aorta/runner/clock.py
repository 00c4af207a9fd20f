"""One instant on the three clocks that profilers and records use."""

from __future__ import annotations

import time

from aorta.artefacts.records import ClockTriple

_TRIES = 5


def read_clocks() -> ClockTriple:
    """CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME in ns, of the tightest of a few back-to-back
    readings.

    The monotonic clock is read on both sides of the other two and its middle is kept, so a process that
    loses its CPU between two readings does not shift the clocks against each other.
    """
    best: tuple[int, ClockTriple] | None = None
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if best is None or after - before < best[0]:
            middle = before + (after - before) // 2
            triple = ClockTriple(realtime_ns=realtime, monotonic_ns=middle, boottime_ns=boottime)
            best = (after - before, triple)
    assert best is not None
    return best[1]
