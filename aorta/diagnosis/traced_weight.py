"""Reads two things off a capture's host lines: the profiler's weight, and the mistakes of the program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from aorta.artefacts.reduction import TraceStep, TraceSummary
from aorta.averages import fmean
from aorta.diagnosis.mistaken import mistakes_of
from aorta.errors import ArtefactError
from aorta.metrics.compute_use import compute_use
from aorta.metrics.corrected import without_profiler
from aorta.metrics.profiler_weight import Lines, scales, weight
from aorta.metrics.trace_capture import FEWEST_STEPS, TraceCapture, capture
from aorta.metrics.trace_summary import counted, mean_ms
from aorta.readers.parallel import by_copies
from aorta.units import NS_PER_MS

if TYPE_CHECKING:
    from aorta.artefacts.step_columns import StepColumns
    from aorta.artefacts.traced import ProfilerOverhead

T = TypeVar("T")


def host_lines(ranks: Sequence[TraceSummary], expected: int | None) -> Lines | None:
    """The lines of all ranks; None where a rank has none, is missing or shares no step with the others."""
    lines = {summary.rank: summary.line for summary in ranks if summary.line is not None}
    if not lines or len(lines) < max(len(ranks), expected or 0):
        return None
    try:
        return Lines.of(lines)
    except ArtefactError:
        return None


def undisturbed(
    found: TraceCapture, expected: int | None, untraced_ms: float | None, then: Callable[[TraceCapture], T]
) -> tuple[Lines | None, T, list[str], float]:
    """Returns the replayed lines, what `then` makes of the capture without the profiler, notes and doubt.

    The lines are None as for `host_lines`. The doubt is the hosts' uncertainty in ms.

    Args:
        found: one capture.
        expected: ranks of the job.
        untraced_ms: mean of the run's steps that no profiler recorded. None if there are none.
        then: is called while other processes replay the ends of the weight's range.
    """
    lines = host_lines(found.ranks, expected)
    if lines is None:
        return None, then(found), [], 0.0
    if untraced_ms is not None and lines.told:
        lines = lines.calibrated(untraced_ms)
    made: list[tuple[T, list[str], float]] = []

    def meanwhile() -> None:
        lines.known[own] = lines.run(keep=True)
        without, notes, uncertain = _corrected(found, lines)
        made.append((then(without), notes, uncertain))

    own, *both = scales(lines)
    lines.lanes_as_traced()  # for this process and its copies
    ends = both if untraced_ms is None else []
    replayed = by_copies(lambda scale: lines.run(scale=scale), ends, meanwhile=meanwhile)
    lines.known.update(zip(ends, replayed, strict=True))
    return lines, *made[0]


def untraced_ms(
    by_rank: Mapping[int, StepColumns], first: int | None, outside: ProfilerOverhead | None
) -> float | None:
    """Returns what a step of the run takes without a profiler. None if no step tells.

    Args:
        by_rank: step records.
        first: the first step that the profiler recorded. None if not known.
        outside: what the profiler costs by the records.
    """
    from aorta.metrics.profiler_overhead import before_ms  # raw traces do not need it

    before = None if first is None else before_ms(by_rank, first)
    return before if before is not None or outside is None else outside.outside_ms


def weighed(
    lines: Lines | None,
    ranks: Sequence[TraceSummary],
    *,
    expected: int | None = None,
    intended: Collection[str] = (),
    untraced_ms: float | None = None,
    staged: bool = False,
) -> dict[str, Any]:
    """Returns what `RunFacts` says of the profiler's weight, mistakes and computing. Empty if not known.

    Args:
        lines: of `undisturbed`.
        ranks: those with traces. Where `lines` are None, what they make by themselves is returned.
        expected: ranks of the job. None if not known.
        intended: ids of mistakes that the user declared as intended.
        untraced_ms: as for `undisturbed`.
        staged: as for `mistakes_of`.
    """
    if lines is None:
        return _of_some(ranks, expected, intended)
    mistakes, together = mistakes_of(lines, intended, staged=staged)
    weighs = weight(lines, untraced_ms) if lines.told else None
    step_ms = weighs.step_ms_without.value if weighs else lines.run().mean_ns / NS_PER_MS
    return {
        "profiler_weight": weighs,
        "compute_use": compute_use(lines, step_ms),
        "mistakes": mistakes,
        "mistakes_together": together,
    }


def _of_some(
    ranks: Sequence[TraceSummary], expected: int | None, intended: Collection[str]
) -> dict[str, Any]:
    """Returns `weighed` of ranks that are not all; empty where each rank has a trace, or one has no line."""
    missing = (expected or 0) - len(ranks)
    lines = host_lines(ranks, None) if missing > 0 else None
    if lines is None:
        return {}
    mistakes, together = mistakes_of(lines, intended, missing=missing)
    use = compute_use(lines, None)
    return {"mistakes": mistakes, "mistakes_together": together, "compute_use": use}


def _corrected(found: TraceCapture, lines: Lines | None) -> tuple[TraceCapture, list[str], float]:
    """The capture without the profiler, what a reader must know of that, and the hosts' uncertainty in ms.

    The capture stays as it is where nothing tells, or the profiler weighs next to nothing.
    """
    made = None if lines is None or not lines.told else without_profiler(found.ranks, lines)
    if made is None or lines is None:
        return found, [], 0.0
    traced = fmean(mean_ms(counted(item, found.steps), _step_ns) for item in found.ranks)
    without = capture(made)
    without = replace(without, steps=tuple(step for step in without.steps if step in found.steps))
    enough = min(len(found.steps), FEWEST_STEPS)
    if without.problems or len(without.work) < len(found.work) or len(without.steps) < enough:
        return found, [], 0.0
    step = fmean(mean_ms(counted(item, without.steps), _step_ns) for item in without.ranks)
    uncertain = max(lines.rank_spread * lines.taken_ms(rank) for rank in lines.tables)
    by = "by an estimate" if lines.untraced_ms is None else "by a replay"
    known = "" if lines.untraced_ms is None else f" ({lines.untraced_ms:.1f} ms in the run's untraced steps)"
    note = (
        f"the step takes {step:.1f} ms without the profiler, {by}{known}, and {traced:.1f} ms with it: "
        "breakdown, findings and predictions describe the step without the profiler"
    )
    return without, [note], uncertain


def _step_ns(step: TraceStep) -> int:
    return step.end_ns - step.start_ns
