"""Finds steps in a capture without marks: optimizer calls, or a sequence of kernels that repeats."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Column, Kind, RangeRole, Trace, among, launched_at, take
from aorta.metrics.median import median

REPEATS = 3
"""Fewest whole repetitions from which a period is accepted."""
_LEAST_KERNELS = 4
"""Kernels of a step; a shorter sequence that repeats is a part of one."""
_EQUAL = 0.9
"""Share of kernels that must have the same name one period later."""
_BEST = 0.005
_MOST_CANDIDATES = 200


class Period(Struct, frozen=True, eq=False):
    """Times at which a capture begins to repeat itself, on the host's clock where launches are recorded."""

    starts: Column
    basis: str
    step: Column | None = None
    """The repetition that each start lies in, from the first kernel on. None if a part of one is cut off."""


def period_of(trace: Trace) -> Period | None:
    """Returns the starts of a capture's repetitions, at least four of them; None where it does not repeat."""
    return _optimizer_calls(trace) or kernels_repeat(trace)


def _optimizer_calls(trace: Trace) -> Period | None:
    calls = take(trace.host, trace.host.role == RangeRole.OPTIMIZER)
    if len(calls) <= REPEATS:
        return None
    # Of several optimizers, or of ranges that lie in each other, the first name of the most frequent ones.
    codes, first, counts = np.unique(calls.name, return_index=True, return_counts=True)
    frequent = counts > REPEATS
    if not frequent.any():
        return None
    code = codes[frequent][np.argmin(first[frequent])]
    starts = calls.start_ns[calls.name == code]
    return Period(starts, f"from one call of {trace.names[int(code)]} to the next")


def kernels_repeat(trace: Trace) -> Period | None:
    """Returns the period of the names of kernels in the order of their launch. None if they do not repeat."""
    launched = launched_at(trace)
    kernels = np.flatnonzero(among(trace.gpu.kind, (Kind.COMPUTE, Kind.COMMUNICATION, Kind.GRAPH)))
    if (launched[kernels] != ABSENT).any():
        kernels = kernels[launched[kernels] != ABSENT]
        when = launched
    else:
        when = trace.gpu.start_ns
    order = kernels[np.argsort(when[kernels], kind="stable")]
    names = trace.gpu.name[order]
    length = _length(names)
    if length is None:
        return None
    begins = _anchor(trace, names, length)
    if begins is None:
        return None
    starts = when[order[begins]]
    if len(starts) <= REPEATS or (np.diff(starts) <= 0).any():
        return None
    step = begins // length if len(names) % length == 0 else None
    return Period(starts, f"{length} kernels that repeat", step)


def _length(names: Column) -> int | None:
    """The number of kernels after which the names repeat; None where they do not.

    Layers repeat within a step, but not across its ends: the best repetition is the step's.
    """
    candidates = _gaps(names)
    equal = {gap: float((names[gap:] == names[:-gap]).mean()) for gap in candidates}
    best = max(equal.values(), default=0.0)
    if best < _EQUAL:
        return None
    return min(gap for gap, share in equal.items() if share >= best - _BEST)


def _gaps(names: Column) -> list[int]:
    """The usual distance between two kernels of one name, for each name that occurs often enough."""
    order = np.argsort(names, kind="stable")
    gaps: dict[int, int] = {}
    for rows in np.split(order, np.flatnonzero(np.diff(names[order])) + 1):
        if len(rows) > REPEATS:
            gap = int(median(np.diff(rows)))
            gaps[gap] = gaps.get(gap, 0) + 1
            whole = int(rows[-1] - rows[0])
            # A name that occurs several times per step repeats with the distance over that many.
            for several in range(2, min(len(rows) // REPEATS, 64) + 1):
                distances = rows[several:] - rows[:-several]
                usual = int(median(distances))
                if usual * REPEATS <= whole and bool((distances == usual).mean() >= _EQUAL):
                    gaps[usual] = gaps.get(usual, 0) + 1
    likely = sorted(gaps, key=lambda gap: -gaps[gap])[:_MOST_CANDIDATES]
    return [gap for gap in likely if gap >= _LEAST_KERNELS and gap * REPEATS < len(names)]


def _anchor(trace: Trace, names: Column, length: int) -> NDArray[np.intp] | None:
    """Returns where steps begin, by one kernel of every rank; None where none occurs once per period.

    Of the kernels that occur once per period it is the first by name; else of the pairs of neighbours.
    """
    texts = np.array([*trace.names, ""], dtype=object)
    pairs = names[:-1] * (len(texts) + 1) + names[1:]
    for codes, shift in ((names, 0), (pairs, 1)):
        once = _once(codes, length)
        if once:
            name = [tuple(texts[names[rows[0] + shift - part]] for part in range(shift + 1)) for rows in once]
            return once[name.index(min(name))] + shift
    return None


def _once(codes: Column, length: int) -> list[NDArray[np.intp]]:
    """The places of each code that occurs once per period."""
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    repeats = len(codes) / length
    near = [rows for rows in groups if abs(len(rows) - repeats) < 1.5 and len(rows) > REPEATS]
    return [rows for rows in near if (np.diff(rows) == length).mean() >= _EQUAL]
