"""Counts what occurs in traced steps, and finds the user's own lines."""

from __future__ import annotations

import re
import sys
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from aorta.artefacts.events import ABSENT, Column, GpuEvents, Kind, RangeRole, Trace, TraceRanges, coded, take
from aorta.artefacts.hostline import Census
from aorta.artefacts.mistakes import MistakePlace
from aorta.artefacts.packed import pack
from aorta.intervals import Intervals
from aorta.metrics.host_tags import ALLOCATE
from aorta.metrics.trace_steps import StepWindows

_UNIT = re.compile(r"FSDP::all_gather \((.+)\)")
_DDP = re.compile(r"DistributedDataParallel\.forward")
_FREE = re.compile(r"(?:cuda|hip)Free(?:Async)?(?:_v\d+)?|cuMem(?:Release|Unmap)")
_GATHER = re.compile(r"all_gather")
_WIDE_BYTES = 4
_NAN = re.compile(r"aten::isnan")
_FRAME = re.compile(r"(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)")
_NOT_OWN = re.compile(
    r"(?:^|/)(?:torch|torchgen|site-packages|dist-packages|lib/python3[^/]*|aorta/instrument)/|^<"
)
_MOST_UNITS = 1_000
_SAMPLES = 200


def census(trace: Trace, host: TraceRanges, gpu: GpuEvents, steps: StepWindows) -> Census:
    """Count what occurs in the steps of a line."""
    first, last = int(steps.windows[0, 0]), int(steps.windows[-1, 1])
    names, count = trace.names, len(steps)

    def within(table: TraceRanges) -> TraceRanges:
        return take(table, (table.start_ns >= first) & (table.start_ns < last))

    operators, ranges = within(trace.operators), within(trace.host)
    allocating = within(take(host, coded(names, host.name, ALLOCATE.fullmatch)))
    places = np.searchsorted(steps.windows[:, 0], allocating.start_ns, side="right")
    counts = {
        "ddp_forward": float(coded(names, ranges.name, _DDP.fullmatch).sum()) / count,
        "optimizer": float((ranges.role == RangeRole.OPTIMIZER).sum()) / count,
        "nan_checks": float(coded(names, operators.name, _NAN.fullmatch).sum()) / count,
        "allocator_calls": len(allocating) / count,
        "frees": float(coded(names, allocating.name, _FREE.fullmatch).sum()) / count,
        "allocating_steps": len(np.unique(places)) / count,
    }
    known = trace.collectives
    inside = (trace.gpu.start_ns[known.event] >= first) & (trace.gpu.start_ns[known.event] < last)
    for code, number in zip(*np.unique(known.op[inside], return_counts=True), strict=True):
        if code != ABSENT:
            counts[names[int(code)]] = float(number) / count
    gathers = inside & coded(names, known.op, _GATHER.fullmatch)
    counts["gathers"] = float((gathers & (known.item_bytes != ABSENT)).sum()) / count
    counts["wide_gathers"] = float((gathers & (known.item_bytes >= _WIDE_BYTES)).sum()) / count
    units = {
        found[1]
        for code in np.unique(ranges.name).tolist()
        if code >= 0 and (found := _UNIT.fullmatch(names[code]))
    }
    return Census(
        counts=counts,
        units=sorted(units)[:_MOST_UNITS],
        gpu=trace.gpu_name,
        kernels=pack(_kernels(gpu, names)),
    )


def _kernels(gpu: GpuEvents, names: Sequence[str]) -> Column:
    rows = gpu.kind == Kind.COMPUTE
    pairs = set(zip(gpu.name[rows].tolist(), gpu.shape[rows].tolist(), strict=True))
    codes = {zlib.crc32(f"{names[name] if name >= 0 else ''}|{shape}".encode()) for name, shape in pairs}
    return np.array(sorted(codes), dtype=np.int64)


def own_frames(trace: Trace) -> TraceRanges:
    """The Python functions of the user's own files, on the thread that runs the steps."""
    frames = take(trace.operators, trace.operators.role == RangeRole.FRAME)
    own = coded(
        trace.names,
        frames.name,
        lambda name: (found := _FRAME.fullmatch(name)) is not None and _own(found["file"]),
    )
    frames = take(frames, own)
    if len(frames) == 0:
        return frames
    # Other threads have frames, too: of the loader, of the profiler.
    main = np.unique(trace.host.lane[trace.host.role == RangeRole.STEP])
    frames = take(frames, np.isin(frames.lane, main))
    return take(frames, np.argsort(frames.start_ns, kind="stable"))


def _own(file: str) -> bool:
    """True for a file that is neither torch's nor Python's; paths may be cut to what follows `sys.path`."""
    return (
        not _NOT_OWN.search(file)
        and file.split("/", maxsplit=1)[0].removesuffix(".py") not in sys.stdlib_module_names
    )


def place_of(spans: Intervals, frames: TraceRanges, names: Sequence[str]) -> MistakePlace | None:
    """The innermost own function that most of the spans lie in; None without stacks."""
    if len(frames) == 0 or len(spans) == 0:
        return None
    longest = spans[np.argsort(spans[:, 0] - spans[:, 1])][:_SAMPLES]
    votes: Counter[int] = Counter()
    for start, end in longest.tolist():
        middle = (start + end) // 2
        reach = int(np.searchsorted(frames.start_ns, middle, side="right"))
        open_ = np.flatnonzero(frames.end_ns[:reach] > middle)
        if len(open_):
            votes[int(frames.name[open_[-1]])] += end - start
    if not votes:
        return None
    found = _FRAME.fullmatch(names[votes.most_common(1)[0][0]])
    assert found is not None
    return MistakePlace(function=found["function"], file=found["file"], line=int(found["line"]))
