"""Where in the step the host's part lies: between which two things that were timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import COMMUNICATION_STREAMS, Step
from aorta.units import NS_PER_MS

Ints = NDArray[np.int64]

START, END = "the step's start", "the step's end"
_COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class HostGap:
    """Host time between the end of one timed piece and the start of the next; means a step."""

    after: str
    before: str
    ms: float
    share: float
    """Of all of the host's part, 0 to 1."""


def host_gaps(by_rank: Mapping[int, Sequence[Step]]) -> list[HostGap]:
    """The gaps of the given steps of all ranks by what they lie between, the longest first.

    The sum is the host's part of the breakdown. Steps without ranges are left out.
    """
    sums: dict[tuple[str, str], int] = defaultdict(int)
    steps = 0
    for records in by_rank.values():
        columns = StepColumns.of(records)
        columns = columns.where(columns.profiled)
        steps += len(columns)
        for names, total in _gaps(columns):
            sums[names] += total
    whole = sum(sums.values())
    if not whole:
        return []
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [
        HostGap(after, before, total / steps / NS_PER_MS, total / whole) for (after, before), total in ordered
    ]


def _gaps(steps: StepColumns) -> list[tuple[tuple[str, str], int]]:
    """The gaps of one rank's steps by their names, ns.

    Pieces are gone through in order of start, end and name. Time is covered up to the furthest end so far;
    what lies between that and a later start is a gap, after the last piece that reached as far.
    """
    found, length = steps.ranges(), steps.duration_ns
    timed = [item.stream != "host" or item.tag == "data" for item in found.kinds]
    names = sorted({_name(item.stream, item.tag) for item in found.kinds} | {START, END})
    code = np.array([names.index(_name(item.stream, item.tag)) for item in found.kinds], dtype=np.int64)
    kept = np.flatnonzero(np.array(timed, dtype=np.bool_)[found.kind])
    name = code[found.kind[kept]]
    order = kept[np.lexsort((name, found.end_ns[kept], found.start_ns[kept], found.row[kept]))]
    row, name = found.row[order], code[found.kind[order]]
    start, end = found.start_ns[order], found.end_ns[order]
    # A row for the start of each step goes before its pieces, and one for its end after them.
    whole, steps_of = np.arange(len(steps)), len(steps)
    at = np.argsort(np.concatenate((3 * whole, 3 * row + 1, 3 * whole + 2)), kind="stable")
    zero = np.zeros(steps_of, dtype=np.int64)
    step = np.concatenate((whole, row, whole))[at]
    name = np.concatenate((zero + names.index(START), name, zero + names.index(END)))[at]
    start = np.concatenate((zero, start, length))[at]
    end = np.concatenate((zero, end, length))[at]
    pairs = _between(step, name, (np.minimum(start, length[step]), end), length)
    return [((names[after], names[before]), total) for (after, before), total in pairs.items()]


def _between(step: Ints, name: Ints, span: tuple[Ints, Ints], length: Ints) -> dict[tuple[int, int], int]:
    """The sums of the gaps before each row, by the names of what reached furthest and of the row."""
    start, end = span
    # Each step on a stretch of its own, so that the furthest end never comes from another one.
    base = step * (int(length.max(initial=0)) + 1)
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
