"""Where in the step the host's part lies: between which two things that were timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aorta.artefacts.steps import COMMUNICATION_STREAMS, Step
from aorta.units import NS_PER_MS, ms_to_ns

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
        for step in records:
            if step.profile is not None:
                steps += 1
                _add(sums, step)
    whole = sum(sums.values())
    if not whole:
        return []
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [
        HostGap(after, before, total / steps / NS_PER_MS, total / whole) for (after, before), total in ordered
    ]


def _add(sums: dict[tuple[str, str], int], step: Step) -> None:
    assert step.profile is not None
    reach, last = 0, START
    pieces = sorted(
        (ms_to_ns(item.start_ms), ms_to_ns(item.end_ms), _name(item.stream, item.tag))
        for item in step.profile.ranges
        if item.stream != "host" or item.tag == "data"
    )
    for start, end, name in pieces:
        if start > reach:
            sums[last, name] += min(start, step.duration_ns) - reach
        if end >= reach:
            reach, last = min(end, step.duration_ns), name
    if step.duration_ns > reach:
        sums[last, END] += step.duration_ns - reach


def _name(stream: str, tag: str) -> str:
    if stream == "host":
        return "the loader"
    return _COMMUNICATION if stream in COMMUNICATION_STREAMS else tag
