"""Finds which steps of a run's records its traces are of, and which of them count.

A profiler's first step includes its start-up, and the step after the capture includes writing its report. A
capture of the whole run begins with the warm-up. The records know: the trainer marks such steps
(`StepRecord.phase`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from aorta.artefacts.events import ABSENT, Column
from aorta.artefacts.hostline import HostLine
from aorta.artefacts.packed import pack, unpack
from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import Phase
from aorta.units import plural

_BESIDE = 3
"""Steps before and behind the whole traced ones, in which a profiler may start or write its report."""
_MOST = 0.5
"""Share of a traced step that must lie in a record's step: less is another clock, or another run."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Traces of a run with their steps numbered as in its records."""

    summaries: tuple[TraceSummary, ...]
    counted: frozenset[int] | None
    """The global steps that count. None if the records do not tell, and the numbers are the traces' own."""
    notes: tuple[str, ...] = ()
    first: int | None = None
    """The first traced step of any rank; None as for `counted`."""
    around: range = range(0)
    """The steps in which the profiler starts, records and writes its report; empty as for `counted`."""

    def kept(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Return the ones of `steps` that count."""
        return tuple(step for step in steps if self.counted is None or step in self.counted)


def numbered(
    summaries: Sequence[TraceSummary], by_rank: Mapping[int, StepColumns], boots: Mapping[int, int]
) -> Numbered:
    """The summaries of one format with global step numbers, and the steps that are steady by the records.

    Args:
        summaries: of the ranks; those without whole steps stay as they are.
        by_rank: the step records.
        boots: rank to the wall-clock ns of its machine's boot, for traces that count from it.

    A traced step is the record's in which most of it lies on the wall clock: both are the GPU's time. A step
    counts if it is steady on every rank. If all captured steps have the phase `profiler` only because of the
    recording (torch.profiler, which has its own warm-up before), they count. Warm-up, validation and
    checkpoint steps never count.
    """
    whole = [summary for summary in summaries if summary.timeline is not None and summary.steps]
    numbers: dict[int, Column] = {}
    for summary in whole:
        steps = by_rank.get(summary.rank)
        epoch = summary.epoch_ns if summary.epoch_ns is not None else boots.get(summary.rank)
        found = _matched(summary, steps, epoch) if steps and epoch is not None else None
        if found is None:
            why = f"no step in rank {summary.rank}'s trace overlaps with its step records"
            note = f"{why}: traced steps that are not steady could not be excluded"
            return Numbered(tuple(summaries), None, (note,))
        numbers[summary.rank] = found
    if not numbers:
        return Numbered(tuple(summaries), None)
    made = tuple(
        _renumbered(summary, numbers[summary.rank]) if summary.rank in numbers else summary
        for summary in summaries
    )
    common = set.intersection(*(set(found.tolist()) for found in numbers.values()))
    counted = _counted(common, [by_rank[rank] for rank in numbers])
    dropped = len(common - counted)
    notes = (
        [f"{plural(dropped, 'traced step')} left out as not steady, according to the records"]
        if dropped
        else []
    )
    first = min(int(found.min()) for found in numbers.values())
    last = max(int(found.max()) for found in numbers.values())
    return Numbered(made, counted, tuple(notes), first, range(first - _BESIDE, last + 1 + _BESIDE))


def _matched(summary: TraceSummary, steps: StepColumns, epoch_ns: int) -> Column | None:
    """The global step of each traced step; None where they do not match one to one, in order."""
    start, end = steps.column("wall_start_ns"), steps.column("wall_end_ns")
    first = np.array([step.start_ns for step in summary.steps], dtype=np.int64) + epoch_ns
    last = np.array([step.end_ns for step in summary.steps], dtype=np.int64) + epoch_ns
    # Records follow one another: the candidates are the one in which the step begins and the next.
    place = np.searchsorted(start, first, side="right") - 1
    candidates = np.clip(np.stack((place, place + 1)), 0, len(start) - 1)
    shared = np.minimum(end[candidates], last) - np.maximum(start[candidates], first)
    best = np.argmax(shared, axis=0)
    columns = np.arange(len(first))
    if (shared[best, columns] < _MOST * (last - first)).any():
        return None
    chosen = candidates[best, columns]
    if (np.diff(chosen) <= 0).any():
        return None
    found: Column = steps.column("global_step")[chosen]
    return found


def _renumbered(summary: TraceSummary, numbers: Column) -> TraceSummary:
    line = summary.timeline
    assert line is not None
    own = np.array([step.number for step in summary.steps], dtype=np.int64)
    order = np.argsort(own)
    calls = unpack(line.calls.step)
    if len(calls):
        place = np.minimum(np.searchsorted(own[order], calls), len(own) - 1)
        known = own[order][place] == calls
        calls = np.where(known, numbers[order][place], ABSENT)
    steps = [
        msgspec.structs.replace(step, number=number)
        for step, number in zip(summary.steps, numbers.tolist(), strict=True)
    ]
    timeline = msgspec.structs.replace(line, calls=msgspec.structs.replace(line.calls, step=pack(calls)))
    host = None if summary.line is None else _of_line(summary.line, own[order], numbers[order])
    return msgspec.structs.replace(summary, steps=steps, timeline=timeline, line=host)


def _of_line(line: HostLine, own: Column, numbers: Column) -> HostLine:
    """The line with the records' numbers; a step beside the known ones is counted on from the nearest."""
    step = unpack(line.columns["step"])
    place = np.clip(np.searchsorted(own, step, side="right") - 1, 0, len(own) - 1)
    made = pack(numbers[place] + step - own[place])
    found: HostLine = msgspec.structs.replace(line, columns={**line.columns, "step": made})
    return found


def _counted(common: set[int], ranks: Sequence[StepColumns]) -> frozenset[int]:
    phases: tuple[Phase, ...] = ("steady", "profiler")
    for phase in phases:
        found = [steps.column("global_step")[steps.phase_is(phase)].tolist() for steps in ranks]
        counted = frozenset(common.intersection(*found))
        if counted:
            return counted
    return frozenset()
