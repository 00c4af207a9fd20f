"""Arithmetic on the timed pieces of one step: who covers which nanosecond. Pure: no clock, no torch.

Definitions, per rank and step, on one clock (integer ns, half-open):

- U: union of compute (`compute`), C: union of communication (`COMMUNICATION_STREAMS`), M: union of copies
  (`aux`), D: the loader's blocking time (`host`, tag `data`).
- The exclusive parts, in this order: compute |U|, exposed communication |C − U|, exposed copy |M − U − C|,
  data wait |D − U − C − M|, host: the rest. They sum to the step's duration exactly.
- hidden communication |C ∩ U|; `overlap_ratio` = hidden / |C|, None where there is no communication.

A step has a few dozen pieces, and this runs after every step. A single sweep over their ends in plain Python
takes 0.1 ms, while the array functions of `aorta.intervals` take 2 ms. Tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aorta.artefacts.step_names import COMMUNICATION_STREAMS
from aorta.artefacts.step_record import Overlap, Range, StepParts, StepProfile
from aorta.units import ns_to_ms

COMPUTE = "compute"
HOST = "host"
COPY = "aux"
DATA = "data"
STREAMS = (COMPUTE, *COMMUNICATION_STREAMS, COPY)
ALWAYS = (COMPUTE, "allreduce", "reducescatter", "allgather", COPY)
"""Streams that a profile always names; others where they ran."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A piece of a step: [start, end) in ns on the step's clock."""

    stream: str
    tag: str
    start: int
    end: int
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StreamWait:
    """A stretch of compute, [start, end) in ns, in which it may have waited for a collective of `stream`."""

    stream: str
    start: int
    end: int


def without_waits(pieces: Sequence[Timed], waits: Sequence[StreamWait]) -> list[Timed]:
    """`pieces` with compute cut where it stood still.

    In a stretch, compute stood still from the start until the end of the last collective of its stream in
    that stretch. If no collective ended in it, compute never stood still. What is cut out becomes host time
    with the tag `<stream>_wait`.
    """
    cuts = []
    for wait in waits:
        ends = [
            piece.end
            for piece in pieces
            if piece.stream == wait.stream and wait.start < piece.end <= wait.end
        ]
        if ends:
            cuts.append(Timed(HOST, f"{wait.stream}_wait", wait.start, max(ends)))
    cuts.sort(key=lambda cut: cut.start)
    kept: list[Timed] = []
    for piece in pieces:
        if piece.stream != COMPUTE:
            kept.append(piece)
            continue
        start = piece.start
        for cut in cuts:
            if start < cut.end and cut.start < piece.end:
                if cut.start > start:
                    kept.append(Timed(COMPUTE, piece.tag, start, cut.start, piece.metadata))
                start = cut.end
        if start < piece.end or start == piece.start:
            kept.append(Timed(COMPUTE, piece.tag, start, piece.end, piece.metadata))
    return kept + cuts


@dataclass(frozen=True, slots=True)
class TakenTimes:
    """Times that were taken in one step.

    Args:
        start: ns at which the step starts.
        end: ns at which it ends.
        pieces: in any order; parts outside the step are ignored.
        communication_observed: whether every collective of the step is among the pieces. Without that there
            is neither a breakdown nor an overlap: a backward pass may then hide communication that was not
            timed.
        copies_timed: whether host-device copies are among the pieces.
    """

    start: int
    end: int
    pieces: Sequence[Timed]
    communication_observed: bool = True
    copies_timed: bool = False


def step_times(
    start: int,
    end: int,
    pieces: Sequence[tuple[str, str, int, int, dict[str, Any] | None]],
    waits: Sequence[tuple[str, int, int]],
    *,
    communication_observed: bool,
    copies_timed: bool,
) -> TakenTimes:
    """A step from the fields of its pieces and waits, with compute cut where it stood still."""
    cut = without_waits([Timed(*piece) for piece in pieces], [StreamWait(*wait) for wait in waits])
    return TakenTimes(start, end, cut, communication_observed, copies_timed)


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """A part of the step in which the same streams are active; `waiting`: the host is in the loader."""

    start: int
    end: int
    streams: tuple[str, ...]
    waiting: bool

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def segments(times: TakenTimes) -> list[StreamSegment]:
    """The step cut at every start and end of a piece: segments tile it, in order, idle ones included."""
    changes: dict[int, list[tuple[str, int]]] = {times.start: [], times.end: []}
    for piece in times.pieces:
        name = DATA if piece.stream == HOST and piece.tag == DATA else piece.stream
        start, end = max(piece.start, times.start), min(piece.end, times.end)
        if start < end and name != HOST:
            changes.setdefault(start, []).append((name, 1))
            changes.setdefault(end, []).append((name, -1))
    active = dict.fromkeys((*STREAMS, DATA), 0)
    found = []
    for start, end in pairwise(sorted(changes)):
        for name, change in changes[start]:
            active[name] += change
        streams = tuple(name for name in STREAMS if active[name])
        found.append(StreamSegment(start, end, streams, active[DATA] > 0))
    return found


def describe(
    times: TakenTimes, index: int, markers: Sequence[dict[str, Any]] = ()
) -> tuple[StepParts | None, StepProfile]:
    """The exclusive parts of a step and its profile; no breakdown where communication was not observed."""
    cut = segments(times)
    breakdown = _break_down(times, cut) if times.communication_observed else None
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
    profile = StepProfile(
        index=index,
        total_ms=ns_to_ms(times.end - times.start),
        ranges=ranges,
        markers=list(markers),
        overlap=_overlap(times, cut, breakdown),
    )
    return breakdown, profile


def _break_down(times: TakenTimes, cut: list[StreamSegment]) -> StepParts:
    parts = dict.fromkeys(("compute", "exposed", "copy", "data", "host"), 0)
    hidden = 0
    for segment in cut:
        communicating = any(stream in COMMUNICATION_STREAMS for stream in segment.streams)
        if COMPUTE in segment.streams:
            parts["compute"] += segment.length
            hidden += segment.length if communicating else 0
        elif communicating:
            parts["exposed"] += segment.length
        elif times.copies_timed and COPY in segment.streams:
            parts["copy"] += segment.length
        else:
            parts["data" if segment.waiting else "host"] += segment.length
    total, duration = sum(parts.values()), times.end - times.start
    assert total == duration, f"the parts sum to {total} ns, the step has {duration}"
    return StepParts(
        compute_ns=parts["compute"],
        exposed_comm_ns=parts["exposed"],
        exposed_copy_ns=parts["copy"] if times.copies_timed else None,
        data_wait_ns=parts["data"],
        host_ns=parts["host"],
        comm_ns=hidden + parts["exposed"],
        hidden_comm_ns=hidden,
    )


def _overlap(times: TakenTimes, cut: list[StreamSegment], breakdown: StepParts | None) -> Overlap:
    """Busy time of each stream, what they share, and the segments that tile the step."""
    if breakdown is None:
        return Overlap(
            per_stream_ms={}, overlap_ms={}, overlap_ratio=None, active_segments=[], utilization=None
        )
    ran = {stream for part in cut for stream in part.streams}
    timed = [
        stream
        for stream in STREAMS
        if (stream in ALWAYS or stream in ran) and (stream != COPY or times.copies_timed)
    ]

    def together(*streams: str) -> float:
        return ns_to_ms(sum(part.length for part in cut if all(stream in part.streams for stream in streams)))

    idle = sum(part.length for part in cut if not any(stream in timed for stream in part.streams))
    duration, comm = times.end - times.start, breakdown.comm_ns
    return Overlap(
        per_stream_ms={stream: together(stream) for stream in timed},
        overlap_ms={
            "compute_allreduce": together(COMPUTE, "allreduce"),
            "compute_reducescatter": together(COMPUTE, "reducescatter"),
            "compute_allgather": together(COMPUTE, "allgather"),
            **{f"compute_{name}": together(COMPUTE, name) for name in timed if name not in ALWAYS},
            "compute_comm": ns_to_ms(breakdown.hidden_comm_ns),
            "idle": ns_to_ms(idle),
        },
        overlap_ratio=breakdown.hidden_comm_ns / comm if comm else None,
        active_segments=[
            {
                "start_ms": ns_to_ms(start - times.start),
                "end_ms": ns_to_ms(end - times.start),
                "active_streams": list(streams),
            }
            for start, end, streams in _merged(cut, timed)
        ],
        utilization=breakdown.compute_ns / duration if duration else None,
    )


def _merged(cut: list[StreamSegment], timed: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Segments by what of `timed` is active, neighbours with the same streams as one."""
    pending: tuple[int, int, list[str]] | None = None
    for part in cut:
        streams = [stream for stream in part.streams if stream in timed]
        if pending is not None and pending[2] == streams:
            pending = (pending[0], part.end, streams)
            continue
        if pending is not None:
            yield pending
        pending = (part.start, part.end, streams)
    if pending is not None:
        yield pending
