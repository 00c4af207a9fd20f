"""The collectives that one rank called, and the times of its steps, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from aorta.intervals import Intervals
from aorta.metrics.clock_lines import ClockLine
from aorta.metrics.rows import in_order

Ints = NDArray[np.int64]
Key = tuple[int, str, int]
"""Global step, group, and number. For records, the number is the position in the step and group by sequence
number, or by order without sequence numbers; 0 is the first. For traces, see `trace_work`.
"""

SEND_RECV = "send_recv"
"""The operation of a send and its receive."""
RING = "ring"
"""The same where ranks pass something around a ring, such as keys and values of long sequences."""
NOT_RECORDED = -1
"""In `Calls.bytes`."""


def pair_of(group: str) -> tuple[int, int] | None:
    """Returns the ranks of a send and its receive, by the name of their group."""
    source, arrow, target = group.rpartition(" ")[2].partition(">")
    return (int(source), int(target)) if arrow and source.isdigit() and target.isdigit() else None


class CollectiveMember(Struct, frozen=True):
    """One rank's part in one collective, ns on the common clock."""

    op: str
    entry: int
    end: int
    bytes: int | None = None


class TimesByStep(Mapping[int, int]):
    """A time of each step, by global step, ns."""

    __slots__ = ("numbers", "times")

    def __init__(self, numbers: Ints, times: Ints) -> None:
        """The times of the steps `numbers`, both (steps,); of a number that comes twice, the last counts."""
        if (numbers[1:] > numbers[:-1]).all():
            self.numbers, self.times = numbers, times
            return
        self.numbers, last = np.unique(numbers[::-1], return_index=True)
        self.times = times[::-1][last]

    def __getitem__(self, number: int) -> int:
        place = int(np.searchsorted(self.numbers, number))
        if place == len(self.numbers) or self.numbers[place] != number:
            raise KeyError(number)
        return int(self.times[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)

    def has(self, numbers: Ints) -> bool:
        """True if all of `numbers` are among the steps."""
        place = np.searchsorted(self.numbers, numbers)
        if not len(numbers) or place.max() >= len(self.numbers):
            return not len(numbers)
        return bool((self.numbers[place] == numbers).all())

    def at(self, numbers: Ints) -> Ints:
        """The times of steps that are there, (len(numbers),)."""
        return self.times[np.searchsorted(self.numbers, numbers)]

    def on(self, line: ClockLine) -> TimesByStep:
        """The same on another clock."""
        return TimesByStep(self.numbers, line.of(self.times))


@dataclass(frozen=True, slots=True, eq=False)
class Calls(Mapping[Key, CollectiveMember]):
    """Collectives by key, a row each; a key comes once. All int64 of shape (calls,)."""

    names: tuple[str, ...]
    step: Ints
    group: Ints
    """Code of `names`, as is `op`."""
    number: Ints
    op: Ints
    entry: Ints
    end: Ints
    bytes: Ints

    @classmethod
    def of(
        cls, names: Sequence[str], key: tuple[Ints, Ints, Ints], op: Ints, span: tuple[Ints, Ints], size: Ints
    ) -> Calls:
        """The calls of these columns; where a key comes twice, the later row counts.

        Args:
            names: of groups and operations.
            key: step, group and number.
            op: code of the operation.
            span: entry and end.
            size: bytes, or `NOT_RECORDED`.
        """
        made = cls(tuple(names), *key, op, *span, size)
        order = in_order(*key)
        same = np.ones(max(len(op) - 1, 0), dtype=np.bool_)
        for column in key:
            same &= column[order][1:] == column[order][:-1]
        if not same.any():
            return made
        # The sort is stable, so of each key the last row is the later one; it takes the first one's place.
        firsts = np.flatnonzero(np.concatenate(([True], ~same)))
        lasts, order = np.append(firsts[1:], len(op)) - 1, np.arange(len(op))[order]
        return made.rows(order[lasts][np.argsort(order[firsts], kind="stable")])

    def rows(self, rows: NDArray[np.intp] | slice) -> Calls:
        """Some of the calls."""
        names = ("step", "group", "number", "op", "entry", "end", "bytes")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def __getitem__(self, key: Key) -> CollectiveMember:
        step, group, number = key
        codes = [code for code, name in enumerate(self.names) if name == group]
        wanted = (self.step == step) & (self.number == number) & np.isin(self.group, codes)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            raise KeyError(key)
        row = int(rows[0])
        size = int(self.bytes[row])
        return CollectiveMember(
            op=self.names[int(self.op[row])],
            entry=int(self.entry[row]),
            end=int(self.end[row]),
            bytes=None if size == NOT_RECORDED else size,
        )

    def __iter__(self) -> Iterator[Key]:
        columns = (self.step.tolist(), self.group.tolist(), self.number.tolist())
        return ((step, self.names[group], number) for step, group, number in zip(*columns, strict=True))

    def __len__(self) -> int:
        return len(self.step)


NO_CALLS = Calls((), *(np.empty(0, dtype=np.int64) for _ in range(7)))


class RankTimeline(Struct, frozen=True):
    """The activity of one rank over the steps, ns on the common clock."""

    starts: TimesByStep
    """Start of each step; `ends` likewise holds the ends."""
    compute: Intervals
    data: Intervals
    """The loader's blocking time outside of compute and communication."""
    communication: Intervals
    calls: Calls
    """The calls of the rank; empty once they are matched."""
    ends: TimesByStep

    @property
    def span(self) -> tuple[int, int]:
        """First and last of all times but those of calls; (0, 0) without any."""
        sides = [(self.starts.times, self.ends.times)]
        sides += [(item[:, 0], item[:, 1]) for item in (self.compute, self.data, self.communication)]
        known = [(int(begin.min()), int(end.max())) for begin, end in sides if len(begin)]
        return min((begin for begin, _ in known), default=0), max((end for _, end in known), default=0)

    def placed(self, line: ClockLine) -> RankTimeline:
        """The same on another clock, without its calls."""
        return structs.replace(
            self,
            starts=self.starts.on(line),
            ends=self.ends.on(line),
            compute=line.of(self.compute),
            data=line.of(self.data),
            communication=line.of(self.communication),
            calls=NO_CALLS,
        )
