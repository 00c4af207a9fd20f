"""All ranks of a run on one clock: GPU streams, host ranges, step records and monitor counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aorta.artefacts.events import ABSENT, GpuEvents, Kind, RangeRole, Trace, TraceRanges, take
from aorta.artefacts.steps import DecodedStep
from aorta.metrics.alignment import Alignment
from aorta.report.chrome import ChromeTrace, lanes, open_chrome, text
from aorta.units import ms_to_ns

if TYPE_CHECKING:
    import pandas as pd


_HOUR_NS = 3600 * 10**9
_GPU_COUNTERS = {
    "utilization_gpu": ("GPU {} utilisation", "%"),
    "memory_used_mb": ("GPU {} memory", "MiB"),
    "power_draw_w": ("GPU {} power", "W"),
    "sm_clock_mhz": ("GPU {} SM clock", "MHz"),
}
_CPU_COUNTERS = {
    "cpu_percent": ("CPU", "%"),
    "job_cpu_percent": ("CPU of the job", "%"),
    "memory_used_gb": ("memory", "GiB"),
}


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a timeline; times are moved by `alignment` where they are wall-clock times."""

    alignment: Alignment
    host_shift_ns: Mapping[str, int]
    records: Mapping[int, Sequence[DecodedStep]]
    gpu: pd.DataFrame | None
    """Monitor samples, GPU_COLUMNS."""
    cpu: pd.DataFrame | None
    """CPU_COLUMNS."""
    earliest_ns: int
    """About the first time in it (wall-clock ns)."""


def write_timeline(path: Path, content: Content, traces: Iterable[tuple[Trace, int]]) -> int:
    """Write the timeline; the number of events in it.

    Args:
        path: a `.json` or `.json.gz`.
        content: everything but the traces.
        traces: ranks' traces with the wall-clock ns of their zero, one after the other; each is let go before
            the next is asked for.
    """
    aligned = content.alignment
    about = {"clocks": aligned.basis, "spread_of_collective_ends_ns": aligned.spread_ns}
    # Times count from a full hour: small enough for the ns of a double, and no event is before it.
    zero = (content.earliest_ns // _HOUR_NS - 1) * _HOUR_NS
    with open_chrome(path, zero, about) as out:
        for rank in sorted(content.records):
            _add_records(out, rank, content.records[rank], aligned.shift_ns.get(rank, 0))
        for trace, epoch in traces:
            assert trace.rank is not None
            _add_trace(out, trace, epoch + aligned.shift_ns.get(trace.rank, 0))
        _add_samples(out, content)
        out.flush()
        return out.events


def _process(out: ChromeTrace, rank: int) -> int:
    return out.process(f"rank {rank}")


def _add_records(out: ChromeTrace, rank: int, steps: Sequence[DecodedStep], shift: int) -> None:
    process = _process(out, rank)
    spans: dict[str, list[tuple[int, int, str, str]]] = {}
    for step in steps:
        start, length = step.wall_start_ns + shift, step.duration_ns
        name, more = text(f"step {step.global_step}"), f'"phase":{text(step.phase)}'
        more += "" if step.detailed else ',"timed":"as a whole"'
        spans.setdefault("steps", []).append((start, start + length, name, more))
        for item in step.profile.ranges if step.profile is not None else ():
            begin, end = start + ms_to_ns(item.start_ms), start + ms_to_ns(item.end_ms)
            meta = item.metadata
            more = f'"group":{text(meta.group)}' if meta is not None and meta.group is not None else ""
            spans.setdefault(item.stream, []).append((begin, max(begin, end), text(item.tag), more))
    for stream, found in spans.items():
        found.sort(key=lambda item: (item[0], -item[1]))
        starts = np.array([item[0] for item in found], dtype=np.int64)
        ends = np.array([item[1] for item in found], dtype=np.int64)
        for lane, (begin, stop, name, more) in zip(lanes(starts, ends), found, strict=True):
            thread = out.thread(process, f"records: {stream}" + (f" ({lane + 1})" if lane else ""))
            out.slice((process, thread), name, "record", (begin, stop), more)


@dataclass(slots=True)
class _RankTrace:
    """Writes one rank's trace."""

    out: ChromeTrace
    process: int
    trace: Trace
    names: list[str]
    """Names as JSON; the last one stands for none."""
    epoch: int
    calls: dict[int, tuple[int, int, int]]
    """Launch of each correlation: process, thread, start."""

    def ranges(self, label: str, ranges: TraceRanges) -> None:
        """Ranges of one thread; those that do not nest go to threads beside it."""
        ranges = take(ranges, np.lexsort((-ranges.end_ns, ranges.start_ns)))
        start, end = ranges.start_ns + self.epoch, ranges.end_ns + self.epoch
        columns = (start, end, ranges.role, ranges.name, ranges.correlation)
        rows = zip(lanes(start, end), *(column.tolist() for column in columns), strict=True)
        for lane, begin, stop, role, name, correlation in rows:
            thread = self.thread(label, lane)
            self.out.slice(
                (self.process, thread), self.names[name], RangeRole(role).name.lower(), (begin, stop)
            )
            if role == RangeRole.LAUNCH and correlation != ABSENT:
                self.calls[correlation] = (self.process, thread, begin)

    def kernels(self, label: str, gpu: GpuEvents, rows: list[int], arguments: Mapping[int, str]) -> None:
        """GPU events of one stream, `rows` in the trace, with arrows from what launched them."""
        start, end = gpu.start_ns + self.epoch, gpu.end_ns + self.epoch
        columns = (start, end, gpu.kind, gpu.name, gpu.correlation, gpu.bytes)
        found = zip(lanes(start, end), rows, *(column.tolist() for column in columns), strict=True)
        for lane, row, begin, stop, kind, name, correlation, size in found:
            thread = self.thread(label, lane)
            more = arguments.get(row, "") if kind == Kind.COMMUNICATION else ""
            if size != ABSENT:
                more = f'"bytes":{size}'
            kind_name = Kind(kind).name.lower()
            self.out.slice((self.process, thread), self.names[name], kind_name, (begin, stop), more)
            if correlation in self.calls:
                number = self.process << 32 | row
                self.out.arrow(number, self.calls[correlation], (self.process, thread, begin))

    def thread(self, label: str, lane: int) -> int:
        """The thread of a lane of overlapping slices."""
        return self.out.thread(self.process, label + (f" ({lane + 1})" if lane else ""))


def _add_trace(out: ChromeTrace, trace: Trace, epoch: int) -> None:
    """One rank's host threads and GPU streams, and arrows from launches to what they launched."""
    names = [text(name) for name in (*trace.names, "?")]
    rank = _RankTrace(out, _process(out, trace.rank or 0), trace, names, epoch, {})
    for lane in np.unique(trace.host.lane).tolist():
        rank.ranges(f"host thread {_lane(lane)}", take(trace.host, trace.host.lane == lane))
    for lane in np.unique(trace.gpu_ranges.lane).tolist():
        ranges = take(trace.gpu_ranges, trace.gpu_ranges.lane == lane)
        rank.ranges(f"GPU annotations {_lane(lane)}", ranges)
    arguments = _collective_arguments(trace, names)
    gpu = trace.gpu
    for device, stream in np.unique(np.stack((gpu.device, gpu.stream), axis=1), axis=0).tolist():
        rows = np.flatnonzero((gpu.device == device) & (gpu.stream == stream))
        rows = rows[np.lexsort((-gpu.end_ns[rows], gpu.start_ns[rows]))]
        label = f"GPU {_lane(device)} stream {_lane(stream)}"
        rank.kernels(label, take(gpu, rows), rows.tolist(), arguments)


def _lane(number: int) -> str:
    return "?" if number == ABSENT else str(number)


def _collective_arguments(trace: Trace, names: Sequence[str]) -> dict[int, str]:
    """Details of each communication kernel, as JSON, by its row."""
    table = trace.collectives
    columns = (table.event, table.op, table.group, table.sequence, table.bytes_in, table.bytes_out)
    found = {}
    for event, op, group, sequence, size_in, size_out in zip(*(c.tolist() for c in columns), strict=True):
        known = [("op", op, names[op]), ("group", group, names[group]), ("sequence", sequence, str(sequence))]
        known += [("bytes_in", size_in, str(size_in)), ("bytes_out", size_out, str(size_out))]
        found[event] = ",".join(f'"{key}":{value}' for key, number, value in known if number != ABSENT)
    return found


def _add_samples(out: ChromeTrace, content: Content) -> None:
    """Counters of each node; what was not measured leaves a gap, not a 0."""
    for table, counters in ((content.gpu, _GPU_COUNTERS), (content.cpu, _CPU_COUNTERS)):
        if table is None:
            continue
        keys = ["hostname", "node_index", *(["gpu_id"] if "gpu_id" in table else [])]
        for key, rows in table.groupby(keys, dropna=False, sort=True, observed=True):
            host, node, *gpu = key
            process = out.process(f"node {node} {host}")
            ordered = rows.sort_values("wall_ns", kind="stable")
            at = ordered["wall_ns"].astype("int64") + content.host_shift_ns.get(str(host), 0)
            for column, (label, unit) in counters.items():
                if column not in ordered:
                    continue
                known = ordered[column].notna()
                for time, value in zip(at[known], ordered[column][known], strict=True):
                    out.counter(process, label.format(*gpu), unit, int(time), float(value))
