"""Half-open spans [start, end) in ns, in plain Python: `aorta.intervals` needs NumPy, and a program in whose
process this runs may have none.
"""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[int, int]]


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the set that `spans` cover: sorted and disjoint, touching ones merged, empty ones dropped."""
    merged: Spans = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(merged: Spans) -> int:
    """Return the nanoseconds that a union covers."""
    return sum(end - start for start, end in merged)


def shared(a: Spans, b: Spans) -> Spans:
    """Return the set that both unions cover."""
    found: Spans = []
    at = 0
    for start, end in a:
        while at < len(b) and b[at][1] <= start:
            at += 1
        other = at
        while other < len(b) and b[other][0] < end:
            found.append((max(start, b[other][0]), min(end, b[other][1])))
            other += 1
    return found


def clipped(merged: Spans, start: int, end: int) -> Spans:
    """Return the part of a union inside [start, end)."""
    return shared([(start, end)], merged) if start < end else []
