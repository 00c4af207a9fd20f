"""Times of Kineto's events in integer ns.

Times are exact. `ts` and `dur` are µs with three decimals. As a double, a value below 2**43 µs is off by
less than half a nanosecond, so rounding its fraction gives the nanosecond that was written; larger ones
with a fraction are decoded again as decimals. (Kineto's own `baseTimeNanoseconds` keeps `ts` below 2**43.)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from aorta.artefacts.events import Column
from aorta.readers.kineto_events import POSSIBLE_US, Event, ExactEvent

_EXACT_BELOW = float(1 << 43)
AnyEvent: TypeAlias = Event | ExactEvent
AnyEventT = TypeVar("AnyEventT", Event, ExactEvent)


class InexactError(Exception):
    """A time does not fit a double to the nanosecond."""


class EventColumns(Struct, Generic[AnyEventT]):
    """Events of one of the groups, and where they stand in the file."""

    events: list[AnyEventT] = field(default_factory=list)
    at: list[int] = field(default_factory=list)


class TimedEvents(Struct, frozen=True, eq=False):
    """Events that have times."""

    events: Sequence[AnyEvent]
    at: Column
    start_ns: Column
    end_ns: Column


def timed_events(group: EventColumns[AnyEventT], faults: Counter[str]) -> TimedEvents:
    """The events that have times, with start and end in ns; the others are counted.

    Raises:
        InexactError: the events must be decoded again as `ExactEvent`.
    """
    events, at = group.events, np.array(group.at, dtype=np.int64)
    try:
        if {e.ph for e in events} - {"X"}:
            raise TypeError
        start, duration = _whole_ns([e.ts for e in events]), _whole_ns([e.dur for e in events])
    except TypeError:  # times that are absent, exact or out of a double's reach
        good = [e.ph == "X" and e.ts is not None and e.dur is not None for e in events]
        if not all(good):
            faults["without a start or a duration"] += good.count(False)
            events, at = list(itertools.compress(events, good)), at[good]
        start, duration = nanoseconds([e.ts for e in events]), nanoseconds([e.dur for e in events])
    negative = duration < 0
    if negative.any():
        faults["with a negative duration"] += int(negative.sum())
        events = list(itertools.compress(events, ~negative))
        at, start, duration = at[~negative], start[~negative], duration[~negative]
    return TimedEvents(events, at, start, start + duration)


def possible(group: EventColumns[ExactEvent], faults: Counter[str]) -> EventColumns[ExactEvent]:
    """The events whose times can be held in int64 ns, or that have none; the others are counted."""
    good = [all(t is None or -POSSIBLE_US < t < POSSIBLE_US for t in (e.ts, e.dur)) for e in group.events]
    if not all(good):
        faults["with an impossible time"] += good.count(False)
    return EventColumns(
        list(itertools.compress(group.events, good)), list(itertools.compress(group.at, good))
    )


def _whole_ns(us: Sequence[int | float | Decimal | None]) -> Column:
    """`nanoseconds` of numbers that a double holds to the nanosecond, without looking at each one's type.

    Raises:
        TypeError: not all of them are such numbers.
    """
    array = np.fromiter(us, dtype=np.float64, count=len(us))
    if len(array) and (isinstance(us[0], Decimal) or not np.abs(array).max() < _EXACT_BELOW):
        raise TypeError
    return _rounded(array)


def nanoseconds(values: Sequence[int | float | Decimal | None]) -> Column:
    """Integer ns of µs that are int, float or (all of them) Decimal.

    Raises:
        InexactError: a float is too large to hold its nanosecond, or a number is impossible.
    """
    if values and isinstance(values[0], Decimal):
        exact = [int((Decimal(value or 0) * 1000).to_integral_value()) for value in values]
        return np.array(exact, dtype=np.int64)
    array = np.array(values)
    if not len(array):
        return array.astype(np.int64)
    whole_numbers = array.dtype.kind == "i"
    if array.dtype.kind not in "if" or np.abs(array).max() >= (
        POSSIBLE_US if whole_numbers else _EXACT_BELOW
    ):
        raise InexactError
    if whole_numbers:
        return array * 1000
    return _rounded(array)


def _rounded(us: NDArray[np.float64]) -> Column:
    whole = np.floor(us)
    exact: Column = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return exact
