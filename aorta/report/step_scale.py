"""The top of a chart of step times: a first step of seconds must not flatten all others."""

from __future__ import annotations

import math

from aorta.artefacts.page import StepTimeSeries

_SHARE = 0.98
_ROOM, _ALL = 1.3, 1.08


def ceiling(times: StepTimeSeries) -> float:
    """The highest ms that a chart of these steps shows; there is at least one step."""
    counted = [ms for ms, steady in zip(times.ms, times.steady, strict=True) if steady]
    ordered = sorted(counted or times.ms)
    place = _SHARE * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    top = _ROOM * (low + (high - low) * (place - math.floor(place)))
    longest = max(times.ms)
    return top if longest > top else _ALL * longest
