"""Tells traces of different jobs, or of different times of one job, apart: they are never averaged."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Trace
from aorta.units import NS_PER_S, plural

_APART_NS = 60 * NS_PER_S
"""Captures of one job begin together; the clocks of its nodes differ by far less than this."""
_DAY_S = 86_400


def one_session(traces: Sequence[Trace]) -> tuple[list[Trace], list[Problem]]:
    """Returns the traces that were recorded together, and why the others are not used.

    Of several sessions it is the one with the most ranks, then the latest.
    """
    sessions = [session for same in _by_world(traces) for session in _by_time(same)]
    if len(sessions) < 2:
        return list(traces), []
    used = max(sessions, key=lambda own: (len({trace.rank for trace in own}), _start(own)))
    problems = [
        Problem(file=trace.source, reason=f"{trace.source}: {_reason(session, used)}")
        for session in sessions
        if session is not used
        for trace in session
    ]
    return list(used), problems


def _by_world(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The traces by recorded world size; those that record none go with all others."""
    sizes = sorted({trace.world_size for trace in traces if trace.world_size})
    if len(sizes) < 2:
        return [list(traces)]
    return [[trace for trace in traces if trace.world_size in (size, None)] for size in sizes]


def _by_time(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The traces by when they ran; those without a wall clock count as of the first session."""
    timed = sorted((trace for trace in traces if _span(trace)), key=lambda trace: _span(trace) or (0, 0))
    sessions: list[list[Trace]] = []
    reach = 0
    for trace in timed:
        begin, end = _span(trace) or (0, 0)
        if not sessions or begin > reach + _APART_NS:
            sessions.append([])
        sessions[-1].append(trace)
        reach = max(reach, end)
    rest = [trace for trace in traces if not _span(trace)]
    if not sessions:
        return [rest]
    sessions[0] += rest
    return sessions


def _span(trace: Trace) -> tuple[int, int] | None:
    """Start and end on the wall clock; None where it is not known."""
    if len(trace.gpu) == 0 or trace.epoch_ns is None:
        return None
    return int(trace.gpu.start_ns.min()) + trace.epoch_ns, int(trace.gpu.end_ns.max()) + trace.epoch_ns


def _start(session: Sequence[Trace]) -> int:
    return max((span[0] for trace in session if (span := _span(trace))), default=0)


def _reason(session: Sequence[Trace], used: Sequence[Trace]) -> str:
    own = {trace.world_size for trace in session if trace.world_size}
    other = {trace.world_size for trace in used if trace.world_size}
    if own and other and own != other:
        mine, its = plural(min(own), "rank"), plural(min(other), "rank")
        return (
            f"belongs to another job, with {mine}, so it is not averaged with the traces of a job with {its}"
        )
    apart = abs(_start(session) - _start(used)) / NS_PER_S
    when = f"{apart / _DAY_S:.1f} days" if apart > _DAY_S else f"{apart:.0f} s"
    return f"recorded {when} apart from the traces that are used, so it is not averaged with them"
