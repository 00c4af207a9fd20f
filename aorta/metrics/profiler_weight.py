"""Estimates what the traced steps take without the profiler.

A profiler costs the host time for each operator and driver call that it records. The amount depends on the
machine and on the moment, and the trace itself shows it: the time from an operator's start to the start of
the first operator within it is mostly spent in the profiler. The weight of an operator is the median of that
time, times `_PER_OPERATOR`, the only constant that was fitted. Each stretch of host work is shortened by the
weight of the operators recorded in it. Host work, launches, GPU queues and collectives of all ranks are then
replayed. Work on the GPU keeps its duration.

Where the run has steps that no profiler recorded, the weight is scaled until the replay takes as long as
these steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from aorta.artefacts.hostline import HostLine, LineTable, unpack_line
from aorta.artefacts.weight import Estimate, ProfilerWeight, RankWeight
from aorta.errors import ArtefactError
from aorta.metrics.line_replay import (
    Floats,
    ReplayChanges,
    ReplayedStep,
    ReplayLine,
    lanes,
    lessened,
    replay,
    worked,
)
from aorta.units import NS_PER_MS

_PER_OPERATOR = 3.1
"""The weight of an operator, over the time from its start to that of the first one within it. Fitted to the
captures in docs/profiler-weight.md; leaving one mistake out changes it by at most 2 %.
"""
_SPREAD = 0.35
"""The weight's relative error that nine of ten captures stay within."""
_ERROR = 0.15
"""Relative error of the step time, where the weight is small."""
_SAME = 0.02
"""Steps that differ by less are as long."""
_HALVINGS = 8


class Lines(Struct, frozen=True, eq=False):
    """The host lines of all ranks, and what the profiler weighs in them."""

    lines: Mapping[int, HostLine]
    tables: Mapping[int, LineTable]
    scale: float = 1.0
    """Factor on the profiler's weight."""
    spread: float = _SPREAD
    basis: Literal["untraced steps", "trace"] = "trace"
    untraced_ms: float | None = None
    """Mean of the run's steps that no profiler recorded. None if there are none."""
    known: dict[float, ReplayedStep] = field(default_factory=dict)
    """Unchanged steps that were replayed already, by the scale of the weight."""
    works: dict[tuple[int, float], Floats] = field(default_factory=dict)
    """Results of `work_ns`, by rank and scale."""
    as_traced: dict[int, ReplayLine] = field(default_factory=dict)
    """Results of `lanes_as_traced`."""

    @classmethod
    def of(cls, lines: Mapping[int, HostLine]) -> Lines | None:
        """The lines of all ranks; None where they have no steps in common.

        Raises:
            ArtefactError: a line is damaged.
        """
        if not lines:
            return None
        try:
            tables = {rank: unpack_line(line) for rank, line in lines.items()}
        except (KeyError, ValueError) as error:
            raise ArtefactError(f"a summary's host line is damaged ({error})") from error
        if not set.intersection(*(set(table.step.tolist()) for table in tables.values())):
            return None
        return cls(lines, tables)

    @property
    def groups(self) -> dict[int, list[str]]:
        """The names of each rank's groups."""
        return {rank: line.groups for rank, line in self.lines.items()}

    def weight_ns(self, rank: int, scale: float | None = None) -> Floats:
        """The profiler's share of the work before each item."""
        each = _operator_ns(self.lines[rank]) * (self.scale if scale is None else scale)
        table = self.tables[rank]
        # An operator has a start and an end.
        return np.asarray(each * table.edges / 2, dtype=np.float64)

    def work_ns(self, rank: int, scale: float | None = None) -> Floats:
        """The host's work before each item, without the profiler."""
        key = rank, self.scale if scale is None else scale
        if key not in self.works:
            self.works[key] = lessened(self.tables[rank], self.weight_ns(*key))
            self.works[key].flags.writeable = False
        return self.works[key]

    def lanes_as_traced(self) -> Mapping[int, ReplayLine]:
        """The lines as they are replayed, with the profiler's share of the host's work."""
        if not self.as_traced:
            self.as_traced.update(lanes(self.tables, self.groups, {}))
        return self.as_traced

    @property
    def rank_spread(self) -> float:
        """The weight's relative error on one rank, which steps of all ranks do not calibrate."""
        return _SPREAD

    @property
    def told(self) -> bool:
        """True if the traces tell what the profiler weighs: they hold operators that nest."""
        return all(line.pace.spacing_ns is not None for line in self.lines.values())

    def taken_ms(self, rank: int) -> float:
        """Time that is taken from a host's work per step."""
        table = self.tables[rank]
        taken = float(table.work_ns.sum()) - float(self.work_ns(rank).sum())
        return taken / len(np.unique(table.step)) / NS_PER_MS

    def run(
        self,
        changes: Mapping[int, ReplayChanges] | None = None,
        scale: float | None = None,
        *,
        keep: bool = False,
    ) -> ReplayedStep:
        """The steps without the profiler, and with changes.

        Args:
            changes: by rank; work that a change does not give is the one without the profiler.
            scale: of the weight, instead of the own one.
            keep: the moments of the last two rounds.
        """
        known = None if changes else self.known.get(self.scale if scale is None else scale)
        if known is not None and (known.kept or not keep):
            return known
        if not changes:
            plain = self.lanes_as_traced()
            return replay({rank: worked(plain[rank], self.work_ns(rank, scale)) for rank in plain}, keep=keep)
        made = {rank: changes.get(rank, ReplayChanges()) for rank in self.tables}
        made = {
            rank: replace(mine, work_ns=self.work_ns(rank, scale)) if mine.work_ns is None else mine
            for rank, mine in made.items()
        }
        return replay(lanes(self.tables, self.groups, made), keep=keep)

    def calibrated(self, untraced_ms: float) -> Lines:
        """The lines with the weight that gives the step of the untraced steps, as far as any does.

        Where the GPU is the limit, each weight gives that step. And steps differ for other reasons than the
        weight. So the weight that the trace tells stays where it gives that step, too, and where no weight
        within its spread does.
        """
        low, high = 1.0 - _SPREAD, 1.0 + _SPREAD
        wanted = untraced_ms * NS_PER_MS
        usual = abs(self.run(scale=1.0).mean_ns / wanted - 1.0) <= _SAME
        if usual or not self.run(scale=high).mean_ns <= wanted <= self.run(scale=low).mean_ns:
            return self._by(untraced_ms, 1.0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self.run(scale=middle).mean_ns > untraced_ms * NS_PER_MS:
                low = middle
            else:
                high = middle
        return self._by(untraced_ms, (low + high) / 2)

    def _by(self, untraced_ms: float, scale: float) -> Lines:
        return replace(
            self, scale=scale, spread=_ERROR, basis="untraced steps", untraced_ms=untraced_ms, known={}
        )


def scales(lines: Lines) -> tuple[float, float, float]:
    """The scale of the weight, and the largest and smallest that it may have."""
    return lines.scale, lines.scale * (1 + lines.spread), lines.scale * (1 - lines.spread)


def weight(lines: Lines, untraced_ms: float | None = None) -> ProfilerWeight:
    """The traced step and the one without the profiler.

    Args:
        lines: of all ranks, calibrated where `untraced_ms` is given.
        untraced_ms: mean of the run's steps that no profiler recorded. None if there are none.
    """
    value = lines.run()
    rows = [_of_rank(lines, rank, value) for rank in sorted(lines.tables)]
    if untraced_ms is not None:
        about = Estimate(value=untraced_ms, low=untraced_ms * (1 - _ERROR), high=untraced_ms * (1 + _ERROR))
    else:
        ends = [lines.run(scale=scale).mean_ns for scale in scales(lines)[1:]]
        mean = value.mean_ns
        about = Estimate(
            value=mean / NS_PER_MS,
            low=min(ends[0], mean * (1 - _ERROR)) / NS_PER_MS,
            high=max(ends[1], mean * (1 + _ERROR)) / NS_PER_MS,
        )
    return ProfilerWeight(
        step_ms=float(np.mean([row.step_ms for row in rows])),
        step_ms_without=about,
        by_rank=rows,
        basis=lines.basis,
    )


def _of_rank(lines: Lines, rank: int, value: ReplayedStep) -> RankWeight:
    pace = lines.lines[rank].pace
    return RankWeight(
        rank=rank,
        step_ms=pace.step_ns / NS_PER_MS,
        host_ms=value.host_ns[rank] / NS_PER_MS,
        weight_ms=lines.taken_ms(rank),
        operators=pace.operators,
        calls=pace.calls,
    )


def _operator_ns(line: HostLine) -> float:
    """The weight of a recorded operator; 0 where the trace does not tell."""
    spacing = line.pace.spacing_ns
    return 0.0 if spacing is None else _PER_OPERATOR * spacing
