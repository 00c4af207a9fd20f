"""Finds where in the step the host's part lies: between which two things that were timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.step_columns import StepColumns, ranges_of
from aorta.artefacts.step_names import COMMUNICATION_STREAMS
from aorta.artefacts.steps import DecodedStep
from aorta.metrics.rows import in_order
from aorta.metrics.stack import batches
from aorta.units import NS_PER_MS

Ints = NDArray[np.int64]

START, END = "the step's start", "the step's end"
_COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class HostGap:
    """Host time between the end of one timed piece and the start of the next; means per step."""

    after: str
    before: str
    ms: float
    share: float
    """Share of all of the host's part, 0 to 1."""


def host_gaps(by_rank: Mapping[int, Sequence[DecodedStep]]) -> list[HostGap]:
    """The gaps of the given steps of all ranks by what they lie between, the longest first.

    The sum is the host's part of the breakdown. Steps without ranges are left out.
    """
    sums: dict[tuple[str, str], int] = defaultdict(int)
    columns = [StepColumns.of(records) for records in by_rank.values()]
    columns = [steps.where(steps.profiled) for steps in columns]
    length = np.array([(steps.duration_ns + 1).sum() for steps in columns], dtype=np.int64)
    for part in batches(np.zeros_like(length), length):
        for names, total in _gaps(columns[part]):
            sums[names] += total
    steps = sum(len(item) for item in columns)
    whole = sum(sums.values())
    if not whole:
        return []
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [
        HostGap(after, before, total / steps / NS_PER_MS, total / whole) for (after, before), total in ordered
    ]


def _gaps(columns: Sequence[StepColumns]) -> list[tuple[tuple[str, str], int]]:
    """The gaps of some ranks' steps by their names, ns.

    Pieces are gone through in order of start, end and name. Time is covered up to the latest end so far. The
    time from there to a later start is a gap, which comes after the piece with that latest end.
    """
    found, length = ranges_of(columns), np.concatenate([steps.duration_ns for steps in columns])
    timed = [item.stream != "host" or item.tag == "data" for item in found.kinds]
    names = sorted({_name(item.stream, item.tag) for item in found.kinds} | {START, END})
    code = np.array([names.index(_name(item.stream, item.tag)) for item in found.kinds], dtype=np.int64)
    kept = np.flatnonzero(np.array(timed, dtype=np.bool_)[found.kind])
    row, start, end = found.row[kept], found.start_ns[kept], found.end_ns[kept]
    name = code[found.kind[kept]]
    order = in_order(row, start, end, name)
    row, start, end, name = row[order], start[order], end[order], name[order]
    # A row for the start of each step goes before its pieces, and one for its end after them.
    first, size = np.arange(len(length)), len(row) + 2 * len(length)
    pieces = np.cumsum(np.bincount(row, minlength=len(length)))
    places = np.append(0, pieces[:-1]) + 2 * first, np.arange(len(row)) + 2 * row + 1, pieces + 2 * first + 1
    zero = np.zeros_like(length)

    def placed(at_start: Ints, own: Ints, at_end: Ints) -> Ints:
        column = np.empty(size, dtype=np.int64)
        for place, part in zip(places, (at_start, own, at_end), strict=True):
            column[place] = part
        return column

    step = placed(first, row, first)
    name = placed(zero + names.index(START), name, zero + names.index(END))
    start, end = placed(zero, start, length), placed(zero, end, length)
    pairs = _between(step, name, (np.minimum(start, length[step]), end), length)
    return [((names[after], names[before]), total) for (after, before), total in pairs.items()]


def _between(step: Ints, name: Ints, span: tuple[Ints, Ints], length: Ints) -> dict[tuple[int, int], int]:
    """The sums of the gaps before each row, by the names of what reached furthest and of the row."""
    start, end = span
    # Each step on a stretch of its own, so that the furthest end never comes from another one.
    base = (np.cumsum(length + 1) - length)[step]
    reach = np.maximum.accumulate(base + np.clip(end, 0, length[step]))
    before = np.concatenate(([0], reach[:-1]))
    furthest = np.maximum.accumulate(np.where(base + end >= before, np.arange(len(step)), 0))
    last = np.concatenate(([0], furthest[:-1]))
    gap = base + start - before
    rows = np.flatnonzero((gap > 0) & (np.concatenate(([-1], step[:-1])) == step))
    many = int(name.max(initial=0)) + 1
    pairs, place = np.unique(name[last[rows]] * many + name[rows], return_inverse=True)
    sums = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(sums, place.reshape(-1), gap[rows])
    return {divmod(pair, many): total for pair, total in zip(pairs.tolist(), sums.tolist(), strict=True)}


def _name(stream: str, tag: str) -> str:
    if stream == "host":
        return "the loader"
    return _COMMUNICATION if stream in COMMUNICATION_STREAMS else tag
