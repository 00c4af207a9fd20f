"""Ranks one after another on one line, so that arithmetic over intervals takes many of them at once.

A rank's own intervals are few, and calls for each of thousands of ranks cost more than what they compute. On
this line, no interval of one rank touches an interval of the next. Unions, differences and sorted searches
of the whole line are therefore those of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.intervals import Intervals

Ints = NDArray[np.int64]

_TOGETHER = 64
"""Ranks of a line: enough that calls cost nothing, few enough to stay in a core's cache."""
_LONGEST = 2**62
"""ns; sums of two stay within 64 bits."""


class Stack(Struct, frozen=True, eq=False):
    """Tells where the times of some ranks lie on their line; ranks are places among them, 0 to n - 1."""

    first: Ints
    """First time of each rank that counts, ns on its own clock; `last` holds the last ones; (n,)."""
    last: Ints
    zero: Ints
    """Place where `first` lies on the line; the next rank's is beyond `last`."""

    @classmethod
    def of(cls, first: Ints, last: Ints) -> Stack:
        """The line of ranks with these times, in their order; `batches` keeps it within 64 bits."""
        ends = np.cumsum(last - first + 1)
        return cls(first, last, ends - (last - first + 1))

    def on(self, rank: Ints, times: Ints) -> Ints:
        """Times of ranks on the line, (n,) each; those outside of a rank's times are at their edges."""
        first = self.first[rank]
        return np.asarray(np.clip(times, first, self.last[rank]) - first + self.zero[rank], dtype=np.int64)

    def line(self, sets: Sequence[Intervals]) -> Intervals:
        """The intervals of each rank, all within its times, on the line; (n, 2)."""
        shift = np.repeat(self.zero - self.first, [len(intervals) for intervals in sets])
        return np.asarray(np.concatenate(sets) + shift[:, None], dtype=np.int64)

    def apart(self, intervals: Intervals) -> list[Intervals]:
        """Divide what lies on the line, in order, by rank, on each rank's clock."""
        shift = (self.first - self.zero).tolist()
        parts = np.split(intervals, np.searchsorted(intervals[:, 0], self.zero[1:]))
        return [part + own for part, own in zip(parts, shift, strict=True)]


def batches(first: Ints, last: Ints) -> Iterator[slice]:
    """Neighbouring ranks whose times fit one line, as slices of `first` and `last`."""
    begin, length = 0, 0
    for place, own in enumerate((last - first + 1).tolist()):
        if place - begin == _TOGETHER or (place > begin and length + own > _LONGEST):
            yield slice(begin, place)
            begin, length = place, 0
        length += own
    if len(first):
        yield slice(begin, len(first))
