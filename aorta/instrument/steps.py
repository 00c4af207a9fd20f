"""Arithmetic on the timed pieces of one step: who covers which nanosecond. Pure: no clock, no torch.

Definitions, per rank and step, on one clock (integer ns, half-open):

- U: union of compute (`compute`), C: union of communication (`allreduce`, `reducescatter`, `allgather`), M:
  union of copies (`aux`), D: the loader's blocking time (`host`, tag `data`).
- The exclusive parts, in this order: compute |U|, exposed communication |C − U|, exposed copy |M − U − C|,
  data wait |D − U − C − M|, host: the rest. They sum to the step's duration exactly.
- hidden communication |C ∩ U|; `overlap_ratio` = hidden / |C|, None where there is no communication.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aorta.artefacts.records import Breakdown, Overlap, Range, StepProfile
from aorta.intervals import Intervals, as_intervals, clip, intersection, length, subtract, union
from aorta.units import ns_to_ms

COMPUTE = "compute"
HOST = "host"
COPY = "aux"
COMMUNICATION = ("allreduce", "reducescatter", "allgather")
DATA = "data"


@dataclass(frozen=True, slots=True)
class Timed:
    """A piece of a step: [start, end) in ns on the step's clock."""

    stream: str
    tag: str
    start: int
    end: int
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What was timed in one step.

    Args:
        start: ns at which the step starts.
        end: ns at which it ends.
        pieces: in any order; parts outside the step are ignored.
        communication_observed: whether every collective of the step is among the pieces. Without that there
            is neither a breakdown nor an overlap: a backward pass may then hide communication that nobody
            timed.
        copies_timed: whether host-device copies are among the pieces.
    """

    start: int
    end: int
    pieces: Sequence[Timed]
    communication_observed: bool = True
    copies_timed: bool = False

    def cover(self, *streams: str, tag: str | None = None) -> Intervals:
        """The part of the step covered by pieces of `streams` (and of `tag`)."""
        pairs = [
            (piece.start, piece.end)
            for piece in self.pieces
            if piece.stream in streams and (tag is None or piece.tag == tag)
        ]
        return clip(as_intervals(pairs), self.start, self.end)


def break_down(times: StepTimes) -> Breakdown | None:
    """The exclusive parts of a step; None where communication was not observed."""
    if not times.communication_observed:
        return None
    compute = times.cover(COMPUTE)
    communication = times.cover(*COMMUNICATION)
    busy = union(np.concatenate((compute, communication)))
    copies = subtract(times.cover(COPY), busy)
    covered = union(np.concatenate((busy, copies)))
    data = length(subtract(times.cover(HOST, tag=DATA), covered))
    compute_ns, comm_ns = length(compute), length(communication)
    exposed = length(busy) - compute_ns
    host = times.end - times.start - length(covered) - data
    parts = Breakdown(
        compute_ns=compute_ns,
        exposed_comm_ns=exposed,
        exposed_copy_ns=length(copies) if times.copies_timed else None,
        data_wait_ns=data,
        # Copies that nobody vouches for are left in the host part, as the schema says.
        host_ns=host if times.copies_timed else host + length(copies),
        comm_ns=comm_ns,
        hidden_comm_ns=comm_ns - exposed,
    )
    total = compute_ns + exposed + (parts.exposed_copy_ns or 0) + data + parts.host_ns
    assert total == times.end - times.start, (
        f"parts sum to {total} ns, the step has {times.end - times.start}"
    )
    return parts


def profile(times: StepTimes, index: int, markers: list[dict[str, Any]] | None = None) -> StepProfile:
    """The ranges of a step in ms since its start, and how its streams overlap."""
    ranges = [
        Range(
            stream=piece.stream,
            tag=piece.tag,
            start_ms=ns_to_ms(piece.start - times.start),
            end_ms=ns_to_ms(piece.end - times.start),
            duration_ms=ns_to_ms(piece.end - piece.start),
            metadata=piece.metadata,
        )
        for piece in sorted(times.pieces, key=lambda piece: (piece.start, piece.end))
    ]
    return StepProfile(
        index=index,
        total_ms=ns_to_ms(times.end - times.start),
        ranges=ranges,
        markers=markers or [],
        overlap=overlap(times),
    )


def overlap(times: StepTimes) -> Overlap:
    """Busy time of each stream, what they share, and the segments that tile the step, idle ones included."""
    if not times.communication_observed:
        return Overlap(
            per_stream_ms={}, overlap_ms={}, overlap_ratio=None, active_segments=[], utilization=None
        )
    streams = [COMPUTE, *COMMUNICATION, *([COPY] if times.copies_timed else [])]
    covers = {stream: times.cover(stream) for stream in streams}
    compute = covers[COMPUTE]
    communication = union(np.concatenate([covers[stream] for stream in COMMUNICATION]))
    hidden, comm_ns = length(intersection(compute, communication)), length(communication)
    duration = times.end - times.start
    active = length(np.concatenate(list(covers.values())))
    return Overlap(
        per_stream_ms={stream: ns_to_ms(length(cover)) for stream, cover in covers.items()},
        overlap_ms={
            "compute_allreduce": ns_to_ms(length(intersection(compute, covers["allreduce"]))),
            "compute_reducescatter": ns_to_ms(length(intersection(compute, covers["reducescatter"]))),
            "compute_comm": ns_to_ms(hidden),
            "idle": ns_to_ms(duration - active),
        },
        overlap_ratio=hidden / comm_ns if comm_ns else None,
        active_segments=_segments(times, covers),
        utilization=length(compute) / duration if duration else None,
    )


def _segments(times: StepTimes, covers: dict[str, Intervals]) -> list[dict[str, Any]]:
    """The step cut wherever a stream starts or stops; neighbours with the same streams are one segment."""
    cuts = {times.start, times.end}
    for cover in covers.values():
        cuts.update(cover.ravel().tolist())
    edges = sorted(cuts)
    segments: list[dict[str, Any]] = []
    for start, end in itertools.pairwise(edges):
        active = [
            stream
            for stream, cover in covers.items()
            if any(a <= start and end <= b for a, b in cover.tolist())
        ]
        if segments and segments[-1]["active_streams"] == active:
            segments[-1]["end_ms"] = ns_to_ms(end - times.start)
        else:
            segments.append(
                {
                    "start_ms": ns_to_ms(start - times.start),
                    "end_ms": ns_to_ms(end - times.start),
                    "active_streams": active,
                }
            )
    return segments
