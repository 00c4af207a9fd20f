"""Check that a rank's summary agrees with itself.

One that `trace_summary.summarise` made always does; one that was cut, edited or mixed up may not.
"""

from __future__ import annotations

from aorta.artefacts.records import MAX_RANKS
from aorta.artefacts.reduction import TraceStep, TraceSummary

MOST = 2**62
"""ns and counts from here on are no measurement; sums of two stay within 64 bits."""


def contradiction(summary: TraceSummary) -> str | None:
    """Why a well-formed summary is unusable, in words; None if it agrees with itself."""
    # The largest group that a trace knows may be smaller than the world.
    size = summary.world_size
    if not 0 <= summary.rank < MAX_RANKS or (size is not None and not 1 <= size <= MAX_RANKS):
        return f"its rank is {summary.rank}, its world size {size}"
    if summary.epoch_ns is not None and not 0 <= summary.epoch_ns < MOST:
        return "the wall-clock time of its start is impossible"
    for step in summary.steps:
        wrong = _of_step(step)
        if wrong is not None:
            return f"step {step.number} {wrong}"
    return _of_numbers(summary) if summary.timeline is not None else None


def _of_numbers(summary: TraceSummary) -> str | None:
    numbers = [step.number for step in summary.steps]
    if not numbers:
        return "it has a timeline without steps"
    return "a step occurs twice" if len(set(numbers)) < len(numbers) else None


def _of_step(step: TraceStep) -> str | None:
    if not -MOST < step.start_ns < step.end_ns < MOST or not -1 <= step.number < MOST:
        return "has an impossible time or number"
    busy = (step.compute_ns, step.exposed_comm_ns, step.exposed_copy_ns, step.unclassified_ns, step.unseen_ns)
    idle = (step.idle_loader_ns, step.idle_sync_ns, step.idle_launch_ns, step.idle_elsewhere_ns)
    rest = (step.data_wait_ns, step.host_ns)
    if min(*busy, *rest, *idle, step.hidden_comm_ns, step.short_gaps_ns, step.long_gaps_ns) < 0:
        return "has a negative part"
    took, total = step.end_ns - step.start_ns, sum(busy) + sum(rest)
    if total != took:
        return f"has parts that sum to {total} ns, but takes {took} ns"
    if sum(idle) != sum(rest):
        return f"idles for {sum(rest)} ns, but the causes of idle time sum to {sum(idle)} ns"
    if step.hidden_comm_ns + step.exposed_comm_ns != step.comm_ns:
        return "has hidden and exposed communication that do not sum to its communication"
    return None
