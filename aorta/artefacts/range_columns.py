"""Timed ranges of a rank's steps as columns: their names repeat from step to step and are kept once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.steps import CollectiveId, DecodedStep, StepRange, StepRanges
from aorta.units import NS_PER_MS, ns_to_ms

Ints = NDArray[np.int64]
Stored = NDArray[np.signedinteger]

STAGE = "stage "
"""Begins the group of ranges that are passes of a microbatch; their sequence number is the microbatch."""
ABSENT = -(2**31)
"""In a column: the record does not say."""
_MOST = float(2**61)
"""ns from here on are no time; sums of two stay within 64 bits."""
_KINDS = tuple(
    (kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in (np.int8, np.int16, np.int32)
)
_KindKey = tuple[str, str, str | None, str | None, int | None, bool]


class RangeKind(NamedTuple):
    """Says what ranges have in common that lie at the same place of their steps."""

    stream: str
    tag: str
    op: str | None
    group: str | None
    bytes: int | None
    named: bool
    """The range has metadata."""


class RangeColumns(Struct, frozen=True, eq=False):
    """The ranges of some steps, a row each, in the order of the steps and of their records."""

    row: Ints
    """Place of the step among those asked for."""
    kinds: tuple[RangeKind, ...]
    kind: Ints
    """Code of `kinds`."""
    start_ns: Ints
    """Since the step's start, as is the end."""
    end_ns: Ints
    seq: Ints
    """ABSENT: the record does not say."""


class RangeStore(Struct, frozen=True, eq=False):
    """The ranges of one rank; a step names its first one and how many it has."""

    kinds: tuple[RangeKind, ...]
    kind: Stored
    start_ns: Stored
    end_ns: Stored
    seq: Stored

    def rows(self, first: Ints, count: Ints) -> RangeColumns:
        """Returns the ranges of the steps that begin at `first` and have `count` of them."""
        row = np.repeat(np.arange(len(first)), count)
        at = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        return RangeColumns(
            row=row,
            kinds=self.kinds,
            kind=self.kind[at].astype(np.int64),
            start_ns=self.start_ns[at].astype(np.int64),
            end_ns=self.end_ns[at].astype(np.int64),
            seq=self.seq[at].astype(np.int64),
        )

    def profile(self, first: int, count: int) -> StepRanges | None:
        """Returns the ranges of one step; None where the step has no profile."""
        if first == ABSENT:
            return None
        found = []
        for at in range(first, first + count):
            kind, seq = self.kinds[int(self.kind[at])], or_none(int(self.seq[at]))
            meta = CollectiveId(op=kind.op, group=kind.group, seq=seq, bytes=kind.bytes)
            found.append(
                StepRange(
                    stream=kind.stream,
                    tag=kind.tag,
                    start_ms=ns_to_ms(int(self.start_ns[at])),
                    end_ms=ns_to_ms(int(self.end_ns[at])),
                    metadata=meta if kind.named else None,
                )
            )
        return StepRanges(ranges=found)


def stored_ranges(steps: Sequence[DecodedStep]) -> tuple[Stored, Stored, RangeStore]:
    """First range and number of ranges of each step, and all ranges."""
    count = [0 if step.profile is None else len(step.profile.ranges) for step in steps]
    rank = steps[0].rank if steps else 0
    ends = np.cumsum(np.array(count, dtype=np.int64))
    first = np.where([step.profile is None for step in steps], ABSENT, ends - count)
    profiles = [step.profile.ranges for step in steps if step.profile is not None]
    items = list(itertools.chain.from_iterable(profiles))
    kinds: dict[_KindKey, int] = {}
    kind = [
        kinds.setdefault(
            (item.stream, item.tag, None, None, None, False)
            if (meta := item.metadata) is None
            else (item.stream, item.tag, meta.op, _calling(meta, rank), meta.bytes, True),
            len(kinds),
        )
        for item in items
    ]
    seq = [ABSENT if (number := _number(item.metadata)) is None else number for item in items]
    store = RangeStore(
        kinds=tuple(RangeKind(*key) for key in kinds),
        kind=narrow(kind),
        start_ns=narrow(_ns([item.start_ms for item in items])),
        end_ns=narrow(_ns([item.end_ms for item in items])),
        seq=narrow(seq),
    )
    return narrow(first), narrow(count), store


def _calling(meta: CollectiveId, rank: int) -> str | None:
    """Returns who calls together: a group, or the two sides of a send and its receive; of a pass of a
    microbatch the stage.
    """
    if meta.stage is not None:
        return f"{STAGE}{meta.stage}"
    if meta.op not in ("send", "recv"):
        return meta.group
    peer = "any" if meta.peer is None else meta.peer
    return f"{meta.group} {rank}>{peer}" if meta.op == "send" else f"{meta.group} {peer}>{rank}"


def _number(meta: CollectiveId | None) -> int | None:
    if meta is None:
        return None
    return meta.seq if meta.microbatch is None else meta.microbatch


def or_none(value: int) -> int | None:
    """Returns the value of a column's row; None where the record does not say."""
    return None if value == ABSENT else value


def narrow(values: Sequence[int] | Ints) -> Stored:
    """The integers in the fewest bytes that hold them and ABSENT, if it is there."""
    whole = np.asarray(values, dtype=np.int64)
    return whole.astype(kind_for(int(whole.min(initial=0)), int(whole.max(initial=0))), copy=False)


def kind_for(low: int, high: int) -> type[np.signedinteger]:
    """The smallest integer type that holds both values."""
    return next((kind for kind, least, most in _KINDS if least <= low and high <= most), np.int64)


def _ns(ms: list[float]) -> Ints:
    """Returns `ms_to_ns`, cut where 64 bits end."""
    return np.clip(np.rint(np.array(ms, dtype=np.float64) * NS_PER_MS), -_MOST, _MOST).astype(np.int64)
