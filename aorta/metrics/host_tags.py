"""Tags for what the host works on, by the names of operators, ranges and driver calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.events import RangeRole, Trace, TraceRanges, among, coded, take
from aorta.artefacts.hostline import Tag
from aorta.intervals import EMPTY, Intervals, as_intervals, subtract, union

SILENT_NS = 2_000_000
"""Python code that calls no operator for this long is not launching work."""
_CPU_NS = 50_000
"""An operator that launches nothing and takes this long computes on the CPU."""
_RESTART_NS = 10_000_000
_FEW_OPERATORS = 50
"""A sampler that begins again calls some; a training step calls hundreds."""
_EVALUATE = re.compile(r"autograd::engine::evaluate_function: .*")
_FORWARD = re.compile(
    r"aten::(?:linear|layer_norm|rms_norm|group_norm|batch_norm|instance_norm|scaled_dot_product_attention|"
    r"conv[123]d|embedding|gelu|silu|relu|dropout|softmax|tanh)"
)
_NAMES: dict[Tag, re.Pattern[str]] = {
    Tag.READ_BACK: re.compile(
        r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|nonzero_numpy|masked_select|unique\w*|_unique2)"
    ),
    Tag.COLLECTIVE: re.compile(
        r"c10d::.*|record_param_comms|(?:nccl|rccl|gloo):.*|FSDP::.*|torch[.:]+distributed.*"
    ),
    Tag.PIECE: re.compile(
        r"aten::(?:select|slice|narrow|index|index_select|index_add_?|index_put_?|_index_put_impl_|"
        r"masked_select|nonzero)"
    ),
    Tag.JOIN: re.compile(r"aten::(?:cat|stack)"),
    Tag.ANOMALY: re.compile(r"aten::isnan|aten::_is_any_true|.*AnomalyMode.*"),
    Tag.COMPILE: re.compile(
        r".*\(dynamo_timed\)|.*compile_fx.*|.*compile_inner.*|.*convert_frame.*|.*Inductor.*[Cc]ompil.*"
        r"|TorchDynamo.*|_compile\..*"
    ),
}
_NAN_CHECK = re.compile(r"aten::isnan")
ALLOCATE = re.compile(r"(?:cuda|hip)(?:Malloc|Free)(?:_v\d+)?|cu(?:MemCreate|MemRelease|MemMap|MemUnmap)")
"""Calls of stream-ordered pools (`cudaMallocAsync`) are left out: each tensor makes some, and none waits."""
_SINGLE_LOADER = re.compile(r".*_SingleProcessDataLoaderIter.*")


def spans(ranges: TraceRanges, rows: NDArray[np.bool_]) -> Intervals:
    """The intervals of some rows."""
    return np.stack((ranges.start_ns[rows], ranges.end_ns[rows]), axis=1)


def tagged(trace: Trace) -> dict[Tag, Intervals]:
    """Returns when the host worked for what; tags that do not occur are left out."""
    found = {tag: union(intervals) for tag, intervals in _tagged(trace)}
    return {tag: intervals for tag, intervals in found.items() if len(intervals)}


def _tagged(trace: Trace) -> Iterator[tuple[Tag, Intervals]]:
    host, names = trace.host, trace.names
    operators = take(trace.operators, trace.operators.role == RangeRole.OPERATOR)
    yield Tag.OPTIMIZER, host.intervals(RangeRole.OPTIMIZER)
    yield Tag.LOADER, loader_work(trace)
    yield Tag.LOADER_START, _restarts(trace, operators)
    api = (host.role == RangeRole.API) | (host.role == RangeRole.SYNC)
    yield Tag.ALLOCATOR, spans(host, api & coded(names, host.name, ALLOCATE.fullmatch))
    for tag, pattern in _NAMES.items():
        parts = [
            spans(table, coded(names, table.name, pattern.fullmatch))
            for table in (operators, host)
            if len(table)
        ]
        if parts:
            yield tag, np.concatenate(parts)
    evaluate = coded(names, operators.name, _EVALUATE.fullmatch)
    yield Tag.ANOMALY, _checked(operators, evaluate, coded(names, operators.name, _NAN_CHECK.fullmatch))
    yield Tag.BACKWARD, np.concatenate((spans(operators, evaluate), host.intervals(RangeRole.BACKWARD)))
    yield Tag.RECOMPUTE, _recomputed(operators, evaluate, names)
    if (host.role == RangeRole.LAUNCH).any():
        yield Tag.CPU_OPERATOR, _on_the_cpu(trace, operators)


def loader_work(trace: Trace) -> Intervals:
    """Returns when the training process itself made batches: loaders without workers, and data ranges."""
    host = trace.host
    single = coded(trace.names, host.name, _SINGLE_LOADER.fullmatch)
    waits = (host.role == RangeRole.LOADER) & ~single
    worked = ((host.role == RangeRole.LOADER) & single) | (host.role == RangeRole.DATA)
    return subtract(union(spans(host, worked)), union(spans(host, waits)))


def _restarts(trace: Trace, operators: TraceRanges) -> Intervals:
    """Long stretches between two calls of a loader with hardly an operator, and without a launch."""
    loaders = union(trace.host.intervals(RangeRole.LOADER))
    if len(loaders) < 2:
        return EMPTY
    gaps = np.stack((loaders[:-1, 1], loaders[1:, 0]), axis=1)
    gaps = gaps[gaps[:, 1] - gaps[:, 0] >= _RESTART_NS]
    # What is in order, or nearly, is sorted soonest by the stable way.
    launches = np.sort(trace.host.start_ns[trace.host.role == RangeRole.LAUNCH], kind="stable")
    begun = np.sort(operators.start_ns, kind="stable")
    empty = np.searchsorted(launches, gaps[:, 1]) == np.searchsorted(launches, gaps[:, 0])
    quiet = np.searchsorted(begun, gaps[:, 1]) - np.searchsorted(begun, gaps[:, 0]) < _FEW_OPERATORS
    return np.asarray(gaps[empty & quiet], dtype=np.int64)


def _checked(operators: TraceRanges, evaluate: NDArray[np.bool_], checks: NDArray[np.bool_]) -> Intervals:
    """From the first check of each backward function to its end: the checks are the last that it does."""
    found: list[tuple[int, int]] = []
    for lane in np.unique(operators.lane[evaluate]).tolist():
        outer = np.flatnonzero(evaluate & (operators.lane == lane))
        inner = np.sort(operators.start_ns[checks & (operators.lane == lane)], kind="stable")
        begin, end = operators.start_ns[outer], operators.end_ns[outer]
        first = np.append(inner, np.iinfo(np.int64).max)[np.searchsorted(inner, begin)]
        kept = first < end
        found += zip(first[kept].tolist(), end[kept].tolist(), strict=True)
    return as_intervals(found)


def _recomputed(operators: TraceRanges, evaluate: NDArray[np.bool_], names: Sequence[str]) -> Intervals:
    """From the start of each backward function that holds forward operators to the operator behind them."""
    forward = coded(names, operators.name, _FORWARD.fullmatch)
    found: list[tuple[int, int]] = []
    for lane in np.unique(operators.lane[evaluate]).tolist():
        outer = np.flatnonzero(evaluate & (operators.lane == lane))
        inner = np.flatnonzero(forward & (operators.lane == lane))
        starts = np.sort(operators.start_ns[operators.lane == lane], kind="stable")
        begin, end = operators.start_ns[outer], operators.end_ns[outer]
        place = np.searchsorted(begin, operators.start_ns[inner], side="right") - 1
        inside = (place >= 0) & (operators.start_ns[inner] < end[np.maximum(place, 0)])
        order = np.argsort(place[inside], kind="stable")
        numbers, first = np.unique(place[inside][order], return_index=True)
        if len(numbers) == 0:
            continue
        last = np.maximum.reduceat(operators.end_ns[inner[inside][order]], first)
        after = np.searchsorted(starts, last)
        following = np.where(after < len(starts), starts[np.minimum(after, len(starts) - 1)], last)
        ends = np.minimum(following, end[numbers])
        found += zip(begin[numbers].tolist(), ends.tolist(), strict=True)
    return as_intervals(found)


def _on_the_cpu(trace: Trace, operators: TraceRanges) -> Intervals:
    """The innermost long operators in which nothing was launched and no driver was called."""
    long = np.flatnonzero(operators.end_ns - operators.start_ns >= _CPU_NS)
    calls = among(trace.host.role, (RangeRole.LAUNCH, RangeRole.SYNC, RangeRole.API))
    times, lanes = trace.host.start_ns[calls], trace.host.lane[calls]
    kept = np.zeros(len(operators), dtype=np.bool_)
    for lane in np.unique(operators.lane[long]).tolist():
        rows = long[operators.lane[long] == lane]
        own = np.sort(times[lanes == lane], kind="stable")
        first = np.searchsorted(own, operators.start_ns[rows])
        after = np.searchsorted(own, operators.end_ns[rows])
        kept[rows[first == after]] = True
    return spans(operators, kept)
