"""The traces of one job: which steps count, which ranks they are of, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from aorta.artefacts.analysis import Problem
from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.traced import TraceTable
from aorta.artefacts.unseen import UnseenTime
from aorta.averages import fmean
from aorta.errors import ArtefactError
from aorta.metrics.blame import BlameTable
from aorta.metrics.collectives import MatchedCollectives, match_timelines
from aorta.metrics.trace_summary import breakdown_row, counted, mean_ms, rank_trace, work_of
from aorta.metrics.trace_work import GpuWork, common_steps, impossible_share, timelines
from aorta.units import NS_PER_MS, plural, rank_words

FEWEST_STEPS = 3
"""Fewest whole steps for which an answer describes steps rather than the capture."""
ALONE = "fewer than two ranks have whole steps in common"
"""The reason why nothing is charged where there is only one rank."""
_IMPOSSIBLE = 0.1
"""Share of matches that cannot be true above which none is believed."""


class HostIdle(Struct, frozen=True):
    """GPU idle time for the host alone, by traces; means over ranks and steps."""

    short_gaps_ms: float
    """In gaps between kernels that are no longer than launching a few takes."""
    long_gaps_ms: float
    sync_ms: float
    """Time while the host waited for the GPU."""
    launches: float
    """Driver calls that put work on the GPU, per step."""
    empty_share: float | None
    """Share of the launches that found nothing queued, ranks weighted by their idle time. None if launches
    are not in the traces.
    """

    @property
    def gaps_ms(self) -> float:
        """Short and long gaps together."""
        return self.short_gaps_ms + self.long_gaps_ms

    @property
    def synchronised(self) -> bool:
        """True if the host waits for the GPU during most of the idle time."""
        return self.sync_ms > self.gaps_ms / 2


class TraceCapture(Struct, frozen=True):
    """The summaries of one format: one run of the job."""

    format: str
    ranks: tuple[TraceSummary, ...]
    work: Mapping[int, GpuWork]
    """Work of the ranks with whole steps."""
    steps: tuple[int, ...]
    """Whole steps common to all ranks."""
    problems: tuple[Problem, ...]
    short: bool = False
    """There are steps, and too few to compare them: what is found is about the capture alone."""

    @property
    def sized(self) -> bool:
        """True if there are enough steps, and the collectives' sizes are recorded."""
        enough = len(self.steps) >= FEWEST_STEPS
        return enough and any(int(work.calls.size.max(initial=-1)) > 0 for work in self.work.values())

    def began_ns(self) -> int | None:
        """Returns when the first step began, wall-clock ns; None if no clock is tied to the wall clock."""
        known = [
            item.epoch_ns + min(step.start_ns for step in item.steps)
            for item in self.ranks
            if item.epoch_ns is not None and item.steps
        ]
        return min(known, default=None)

    def words(self) -> str:
        """Format, ranks and steps."""
        ranks, steps = plural(len(self.ranks), "rank"), plural(len(self.steps), "whole step")
        return f"{self.format} ({ranks}, {steps})"

    def unfit(self, broken_down: int, expected: int | None, fewest: int) -> str | None:
        """Returns why the capture cannot stand for its run; None if it can.

        Args:
            broken_down: ranks whose steps have a breakdown.
            expected: ranks of the job.
            fewest: common steps that are needed.
        """
        lost = sorted(set(range(expected or 0)) - set(self.work))
        blind = {item.rank for item in self.ranks if not item.gpu_events}
        if lost and blind.issuperset(lost):
            return f"the traces of {rank_words(lost)} contain no GPU events"
        if expected is None or lost:
            return f"{rank_words(lost)} left no trace with whole steps" if lost else "ranks are missing"
        if broken_down < len(self.ranks):
            return "communication is not classified on some ranks"
        if len(self.steps) < fewest:
            common = plural(len(self.steps), "whole step")
            return f"all ranks have only {common} in common that count, but {fewest} are needed"
        return None

    def host_ns(self) -> dict[int, float]:
        """Work of each rank's host per step, the mean over the common steps; ranks whose trace does not
        tell are not in it.
        """
        found = {}
        for summary in self.ranks:
            own = [step.host_work_ns for step in summary.steps if step.number in self.steps]
            known = [ns for ns in own if ns is not None]
            if known and len(known) == len(own):
                found[summary.rank] = fmean(known)
        return found

    @property
    def sources(self) -> tuple[str, ...]:
        """The files of the ranks with whole steps."""
        return tuple(dict.fromkeys(item.source for item in self.ranks if item.rank in self.work))

    def table(self) -> TraceTable:
        """The table of what traces show of each rank, beside its breakdown."""
        rows = [row for item in self.ranks if (row := rank_trace(item, self.steps)) is not None]
        return TraceTable(format=self.format, per_rank=rows)

    def ranks_expected(self) -> tuple[int | None, bool]:
        """Returns how many ranks there are, and whether that is only assumed."""
        ranks = [item.rank for item in self.ranks]
        if not ranks:
            return None, False
        size = max((item.world_size for item in self.ranks if item.world_size), default=0)
        if size:
            return max(size, ranks[-1] + 1), False
        alone = not any(item.communication_events for item in self.ranks)
        if alone and ranks == [0]:
            return 1, False
        if len(ranks) > 1 and ranks == list(range(len(ranks))):
            return len(ranks), True
        return None, False

    def breakdown_rows(self) -> tuple[list[RankBreakdown], list[Problem]]:
        """Returns each rank's breakdown over the common steps, and why some ranks have none.

        Without common steps, the breakdown is of a rank's own steps.
        """
        rows, problems, hosts = [], [], self.host_ns()
        for summary in self.ranks:
            row = breakdown_row(summary, self.steps)
            if row is not None:
                works = hosts.get(summary.rank)
                work_ms = None if works is None else works / NS_PER_MS
                rows.append(msgspec.structs.replace(row, host_work_ms=work_ms))
                continue
            reason = "it has no steps with GPU events to break down"
            if summary.steps and summary.unknown is not None:
                reason = summary.unknown
            problems.append(Problem(file=summary.source, reason=reason))
        return rows, problems

    def unseen_times(self) -> list[UnseenTime]:
        """Returns the time per step that the traces do not show, by reason, the largest first."""
        used = [item for item in self.ranks if item.rank in self.work]
        sums: dict[tuple[str, str], float] = {}
        for item in used:
            steps = counted(item, self.steps)
            for place, why in enumerate(item.unseen):
                ns = fmean(step.unseen_by[place] if place < len(step.unseen_by) else 0 for step in steps)
                key = why.reason, why.remedy
                sums[key] = sums.get(key, 0.0) + ns / len(used) / NS_PER_MS
        made = [
            UnseenTime(ms=ms, reason=reason, remedy=remedy) for (reason, remedy), ms in sums.items() if ms > 0
        ]
        return sorted(made, key=lambda item: -item.ms)

    def between_ms(self) -> dict[str, dict[int, float]]:
        """Returns the idle ms per step that belong to no step, by phase and rank. Empty if not recorded."""
        found: dict[str, dict[int, float]] = {}
        for item in self.ranks:
            steps = counted(item, self.steps) if item.rank in self.work else []
            known = [step.between_ns for step in steps if step.between_ns is not None]
            for phase in dict.fromkeys(phase for one in known for phase in one):
                total = sum(one.get(phase, 0) for one in known)
                found.setdefault(phase, {})[item.rank] = total / len(steps) / NS_PER_MS
        return found

    def between_shares(self, rows: Sequence[RankBreakdown]) -> dict[int, float]:
        """Returns the share of each rank's step that `between_ms` takes. Empty if not recorded."""
        between = self.between_ms()
        if not between:
            return {}
        return {row.rank: sum(ms.get(row.rank, 0.0) for ms in between.values()) / row.step_ms for row in rows}

    @property
    def loader_marked(self) -> bool:
        """True if any rank's trace names a loader or data range: without one, its time is the host's."""
        return any(item.loader_marked for item in self.ranks if item.rank in self.work)

    def idle(self) -> HostIdle | None:
        """Means over the ranks that have whole steps."""
        if not self.steps:
            return None
        used = [item for item in self.ranks if item.rank in self.work]
        steps = [counted(item, self.steps) for item in used]
        gaps = [mean_ms(mine, lambda step: step.short_gaps_ns + step.long_gaps_ns) for mine in steps]
        # Behind a wait for another rank every queue is full: ranks with idle GPUs tell how launches come.
        empty = [
            (item.queue_depth.empty_share, idle)
            for item, idle in zip(used, gaps, strict=True)
            if item.queue_depth is not None
        ]
        return HostIdle(
            short_gaps_ms=fmean(mean_ms(mine, lambda step: step.short_gaps_ns) for mine in steps),
            long_gaps_ms=fmean(mean_ms(mine, lambda step: step.long_gaps_ns) for mine in steps),
            sync_ms=fmean(mean_ms(mine, lambda step: step.idle_sync_ns) for mine in steps),
            launches=fmean(fmean(step.launches for step in mine) for mine in steps),
            empty_share=_weighted(empty),
        )

    def collectives(self, expected: int | None) -> MatchedCollectives | str:
        """All ranks on one clock with their collectives, or the reason why this is not possible."""
        work, steps = self.work, self.steps
        if expected is None or len(work) < expected:
            return "traces of some ranks are missing, so waiting for these ranks cannot be told from transfer"
        if not work or not steps:
            return ALONE
        silent = [item.rank for item in self.ranks if not item.communication_events]
        if silent and len(silent) < len(self.ranks):
            silence = f"{rank_words(silent)} recorded no communication"
            return f"{silence}, so waiting for them cannot be told from transfer"
        # Clocks of one file are one; whether two files' are cannot be told.
        collectives = match_timelines(timelines(work), {item.rank: item.source for item in self.ranks})
        if isinstance(collectives, str):
            return collectives
        if impossible_share(collectives) > _IMPOSSIBLE:
            return (
                "collectives that should match do not overlap in time, because they belong to several groups "
                "that the traces do not name"
            )
        return collectives


def captures(summaries: Sequence[TraceSummary]) -> list[TraceCapture]:
    """The summaries by format, most ranks first; then those with sizes of collectives, then most steps."""
    formats = sorted({summary.format for summary in summaries})
    found = [capture([item for item in summaries if item.format == name]) for name in formats]
    return sorted(found, key=lambda item: (-len(item.work), not item.sized, -len(item.steps), item.format))


def capture(summaries: Sequence[TraceSummary]) -> TraceCapture:
    """The summaries of one format; one that contradicts itself is a problem."""
    good, work, problems = [], {}, []
    for summary in sorted(summaries, key=lambda item: item.rank):
        try:
            mine = work_of(summary)
        except ArtefactError as error:
            problems.append(Problem(file=summary.source, reason=error.message))
            continue
        good.append(summary)
        if mine is not None:
            work[summary.rank] = mine
    common = common_steps(work)
    return TraceCapture(
        summaries[0].format, tuple(good), work, common, tuple(problems), 0 < len(common) < FEWEST_STEPS
    )


def with_waits(rows: Sequence[RankBreakdown], waits: BlameTable | None) -> list[RankBreakdown]:
    """The rows with each rank's wait and transfer, where they are known."""
    return [_with_waits(row, waits) for row in rows]


def _with_waits(row: RankBreakdown, waits: BlameTable | None) -> RankBreakdown:
    if waits is None:
        return row
    wait = min(waits.wait_ns[row.rank] / waits.steps / NS_PER_MS, row.comm_ms)
    return msgspec.structs.replace(row, wait_ms=wait, transfer_ms=row.comm_ms - wait)


def _weighted(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns the weighted mean of values, with equal weights if all are 0; None without values."""
    if not pairs:
        return None
    whole = sum(weight for _, weight in pairs)
    if not whole:
        return fmean(value for value, _ in pairs)
    return sum(value * weight for value, weight in pairs) / whole
