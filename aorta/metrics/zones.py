"""Finds which zone a clock without one was in: the only one that puts a capture among the samples."""

from __future__ import annotations

_QUARTER_NS = 15 * 60 * 1_000_000_000
_WEST, _EAST = -12 * 4, 14 * 4
"""Zones in quarters of an hour."""

Span = tuple[int, int]
"""[start, end] in ns."""


def zone_offset(samples: Span, capture: Span) -> int | str:
    """Returns how far local time was ahead of UTC, ns, or in words why that cannot be told.

    Args:
        samples: first and last sample, local time taken as if it were UTC.
        capture: a span in wall-clock ns that was sampled.

    Zones differ by quarters of an hour, so samples of less than that have one answer at most.
    """
    fitting = [
        quarter * _QUARTER_NS
        for quarter in range(_WEST, _EAST + 1)
        if samples[0] - quarter * _QUARTER_NS <= capture[0]
        and capture[1] <= samples[1] - quarter * _QUARTER_NS
    ]
    if not fitting:
        return "the samples do not cover the capture in any time zone"
    if len(fitting) > 1:
        return f"the samples have no time zone, and would cover the capture in {len(fitting)} different zones"
    return fitting[0]
