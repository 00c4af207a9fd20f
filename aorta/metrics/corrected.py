"""Summaries of traces as they would be without the profiler: with the replay's times.

Steps, parts, timeline and queue depth are those of a round of the replay. What a replay does not change
stays: kernels, collectives by total time, contention, and what the capture as a whole says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from aorta.artefacts.events import ABSENT, Column, among
from aorta.artefacts.hostline import ComputeKind, Item, LineTable, Tag
from aorta.artefacts.packed import pack, unpack
from aorta.artefacts.reduction import TracedCalls, TracedTimeline, TraceStep, TraceSummary
from aorta.artefacts.traced import QueueDepth
from aorta.intervals import EMPTY, Intervals, clip, intersection, lengths_in, subtract, union
from aorta.metrics.line_replay import Floats, Moments
from aorta.metrics.median import median
from aorta.metrics.profiler_weight import Lines
from aorta.metrics.trace_idle import SHORT_GAP_NS

_WORTH = 0.03
"""A profiler that weighs less than this share of the step leaves the traces as they are, unless the step
waits for a loader.
"""
_COPIES = (ComputeKind.COPY, ComputeKind.PAGEABLE_COPY, ComputeKind.READ_COPY)


def without_profiler(ranks: Sequence[TraceSummary], lines: Lines) -> list[TraceSummary] | None:
    """The summaries without the profiler; None where it weighs next to nothing, or steps are missing."""
    steps = sorted(set.intersection(*(set(table.step.tolist()) for table in lines.tables.values())))
    found = lines.run(keep=True)
    traced = float(np.mean([line.pace.step_ns for line in lines.lines.values()]))
    whole = all(
        summary.timeline is not None and summary.unknown is None and not summary.unseen for summary in ranks
    )
    if not whole or (traced - found.mean_ns < _WORTH * traced and not _paced(lines, traced)):
        return None
    made = []
    for summary in ranks:
        table = lines.tables[summary.rank]
        seen = _Seen.of(table, found.moments(summary.rank), np.array(steps), lines.work_ns(summary.rank))
        windows = seen.windows()
        if windows is None:
            return None
        made.append(_corrected(summary, seen, windows))
    return made


def _paced(lines: Lines, traced_ns: float) -> bool:
    """True if a rank waits for its loader: the profiler makes such a wait shorter, and the step no longer."""
    return any(
        table.held_ns[table.item == Item.LOADER].sum() >= _WORTH * traced_ns * len(np.unique(table.step))
        for table in lines.tables.values()
    )


class _Seen(Struct, frozen=True, eq=False):
    """A rank's items in the last two rounds, a row each, in order."""

    table: LineTable
    """Rows of the common steps."""
    work_ns: Column
    steps: Column
    row: Column
    round: Column
    at: Column
    left: Column
    begin: Column
    end: Column

    @classmethod
    def of(
        cls,
        table: LineTable,
        moments: Moments,
        steps: Column,
        work_ns: Floats,
    ) -> _Seen:
        kept = np.isin(table.step, steps)
        rows = LineTable(**{name: getattr(table, name)[kept] for name in LineTable.__struct_fields__})
        whole = [
            np.asarray(np.rint(getattr(moments, name)), dtype=np.int64)
            for name in ("place", "round", "at", "left", "begin", "end")
        ]
        return cls(rows, np.asarray(np.rint(work_ns[kept]), dtype=np.int64), steps, *whole)

    def of_kinds(self, *kinds: ComputeKind, others: bool = False) -> Intervals:
        """Returns when the GPU did work of these kinds, or of all others."""
        launched = self.table.item[self.row] == Item.LAUNCH
        chosen = launched & (among(self.table.kind[self.row], kinds) != others)
        return union(np.stack((self.begin[chosen], self.end[chosen]), axis=1))

    def windows(self) -> Intervals | None:
        """Each step from its first compute kernel to the next step's; None where one has none."""
        kind = self.table.kind[self.row]
        rest = (ComputeKind.NONE, ComputeKind.COMMUNICATION, *_COPIES)
        rows = (self.table.item[self.row] == Item.LAUNCH) & ~among(kind, rest)
        place = np.searchsorted(self.steps, self.table.step[self.row]) + self.round * len(self.steps)
        first: Column = np.full(2 * len(self.steps) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, place[rows], self.begin[rows])
        first = np.asarray(np.minimum.accumulate(first[::-1])[::-1][: len(self.steps) + 1])
        if (np.diff(first) <= 0).any() or first[-1] == np.iinfo(np.int64).max:
            return None
        return np.stack((first[:-1], first[1:]), axis=1)

    def waits(self, item: Item) -> Intervals:
        """Returns when the host waited at items of a kind."""
        chosen = (self.table.item[self.row] == item) & (self.left > self.at)
        return union(np.stack((self.at[chosen], self.left[chosen]), axis=1))


def _corrected(summary: TraceSummary, seen: _Seen, windows: Intervals) -> TraceSummary:
    communication = seen.of_kinds(ComputeKind.COMMUNICATION)
    copy = seen.of_kinds(*_COPIES)
    compute = seen.of_kinds(ComputeKind.COMMUNICATION, ComputeKind.NONE, *_COPIES, others=True)
    loader = union(np.concatenate((seen.waits(Item.LOADER), _loader_work(summary, seen))))
    busy = union(np.concatenate((compute, communication, copy)))
    data = subtract(loader, busy)
    first, last = int(windows[0, 0]), int(windows[-1, 1])
    steps = _steps(summary, seen, windows, (compute, communication, copy, data, busy))
    timeline = TracedTimeline(
        compute=pack(clip(compute, first, last)),
        communication=pack(clip(communication, first, last)),
        data=pack(clip(data, first, last)),
        calls=_calls(summary, seen),
    )
    return msgspec.structs.replace(summary, steps=steps, timeline=timeline, queue_depth=_queue(seen))


def _loader_work(summary: TraceSummary, seen: _Seen) -> Intervals:
    """Returns when the training process itself made batches: right before each item whose work it is."""
    assert summary.line is not None
    found = [item for item in summary.line.tagged if item.tag == int(Tag.LOADER)]
    if not found:
        return EMPTY
    kept = np.isin(unpack(summary.line.columns["step"]), seen.steps)
    share = unpack(found[0].work_ns)[kept] / np.maximum(seen.table.work_ns, 1)
    took = np.asarray(np.rint(share * seen.work_ns), dtype=np.int64)[seen.row]
    return np.stack((seen.at - took, seen.at), axis=1)[took > 0]


def _steps(
    summary: TraceSummary, seen: _Seen, windows: Intervals, parts: tuple[Intervals, ...]
) -> list[TraceStep]:
    compute, communication, copy, data, busy = parts
    exposed = subtract(communication, compute)
    bare = subtract(copy, union(np.concatenate((compute, communication))))
    span = windows[[0, -1], [0, 1]].reshape(1, 2)
    idle = subtract(subtract(span, busy), data)
    sync = intersection(idle, union(np.concatenate((seen.waits(Item.SYNC), seen.waits(Item.LAUNCH)))))
    gaps = idle[idle[:, 1] - idle[:, 0] <= SHORT_GAP_NS]
    launch_share = _launch_share(summary)
    step = seen.table.step
    made = []
    for place, (number, (start, end)) in enumerate(zip(seen.steps.tolist(), windows.tolist(), strict=True)):
        window = windows[place : place + 1]

        def within(intervals: Intervals, window: Intervals = window) -> int:
            return int(lengths_in(intervals, window)[0])

        took, comm = within(compute), within(communication)
        shown, copied, waited = within(exposed), within(bare), within(data)
        host = end - start - took - shown - copied - waited
        synced = within(sync)
        launched = round((host - synced) * launch_share)
        short = within(gaps)
        made.append(
            TraceStep(
                number=number,
                start_ns=start,
                end_ns=end,
                compute_ns=took,
                exposed_comm_ns=shown,
                exposed_copy_ns=copied,
                unclassified_ns=0,
                data_wait_ns=waited,
                host_ns=host,
                comm_ns=comm,
                hidden_comm_ns=comm - shown,
                idle_loader_ns=waited,
                idle_sync_ns=synced,
                idle_launch_ns=launched,
                idle_elsewhere_ns=host - synced - launched,
                short_gaps_ns=short,
                long_gaps_ns=within(idle) - short,
                launches=int(((step == number) & (seen.table.item == Item.LAUNCH)).sum()),
                host_work_ns=int(seen.work_ns[step == number].sum()),
            )
        )
    return made


def _launch_share(summary: TraceSummary) -> float:
    """Share that driver calls take of the idle time in which the host neither loaded nor waited."""
    launch = sum(step.idle_launch_ns for step in summary.steps)
    elsewhere = sum(step.idle_elsewhere_ns for step in summary.steps)
    return launch / max(launch + elsewhere, 1)


def _calls(summary: TraceSummary, seen: _Seen) -> TracedCalls:
    """The collectives with the replay's times; what else is known of them stays."""
    assert summary.timeline is not None
    assert summary.line is not None
    calls = summary.timeline.calls
    chosen = (seen.table.group[seen.row] != ABSENT) & (seen.round == 0)
    when: dict[tuple[int, str, int], tuple[int, int]] = {}
    for row, begin, end in zip(
        seen.row[chosen].tolist(), seen.begin[chosen].tolist(), seen.end[chosen].tolist(), strict=True
    ):
        group = summary.line.groups[int(seen.table.group[row])]
        when[int(seen.table.step[row]), group, int(seen.table.order[row])] = begin, end
    columns = {
        name: unpack(getattr(calls, name))
        for name in ("step", "group", "order", "sequence", "op", "entry_ns", "end_ns", "size")
    }
    names = calls.names
    keys = [
        (step, names[group], order)
        for step, group, order in zip(
            *(columns[name].tolist() for name in ("step", "group", "order")), strict=True
        )
    ]
    kept = np.array([key in when for key in keys], dtype=np.bool_)
    columns = {name: column[kept] for name, column in columns.items()}
    spans = [when[key] for key in keys if key in when]
    columns["entry_ns"] = np.array([begin for begin, _ in spans], dtype=np.int64)
    columns["end_ns"] = np.array([end for _, end in spans], dtype=np.int64)
    return msgspec.structs.replace(calls, **{name: pack(column) for name, column in columns.items()})


def _queue(seen: _Seen) -> QueueDepth | None:
    rows = seen.table.item[seen.row] == Item.LAUNCH
    if not rows.any():
        return None
    launched, started = np.sort(seen.at[rows]), np.sort(seen.begin[rows])
    depth = np.maximum(np.arange(len(launched)) - np.searchsorted(started, launched, side="right"), 0)
    return QueueDepth(
        launches=len(depth),
        median=median(depth),
        p10=float(np.percentile(depth, 10)),
        empty_share=float((depth == 0).mean()),
    )
