"""Time and memory of `aorta aggregate` where every rank has a summary as large as that of a 1 GB trace.

    python benchmarks/scale_traces.py [--nodes 1 8 64] [--steps 200] [--folder DIR] [--json FILE]
    python benchmarks/scale_traces.py --base TRACE [--mb 25 50 100]

The run's records, samples and markers are those of `scale_generate.py`. Its traces are columns as a reader
gives them: `trace_summary.summarise` makes the summaries, and they are written as `aorta reduce` writes them.
Ranks of the same place on their nodes share one trace's times, which lie within 20 ms of their records'; the
slow rank has its own. Each run is aggregated by a process of its own on two cores; its analysis must be of
the traces, without a problem, and name the slow rank.

With `--base`, nothing is aggregated: traces of these sizes are made of a small one (`trace_generate.py`),
reduced, and what their summaries hold is printed by MB of trace, and for 1 GB.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.artefacts.events import (
    GpuEvents,
    Kind,
    RangeRole,
    Trace,
    TracedCollectives,
    TraceRanges,
    build,
    empty_trace,
)
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.reduction import Packed, Reduction, TraceSummary
from aorta.metrics.trace_summary import summarise
from aorta.readers.traces import read_traces
from benchmarks.scale import RANKS_PER_NODE, aggregate, arguments, run_sizes
from benchmarks.scale_generate import Simulated, write
from benchmarks.trace_generate import generate

_LAUNCH_NS = (5_000, 50_000)
"""Before a kernel starts."""
_GAP_NS = (500, 3_000)
_APART_NS = 1_000
"""From the end of a call to the next one's start."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Content:
    """What a trace holds; the defaults are those of 1 GB, the larger that `--base` prints of two traces."""

    kernels: int = 300_000
    """Compute kernels in all steps together, as are the calls."""
    calls: int = 12_500
    names: int = 60


def write_run(results: Path, nodes: int, per_node: int, steps: int, content: Content) -> tuple[RunDir, int]:
    """A run with summaries, and its slow rank."""
    run = write(results, nodes, per_node, steps)
    ranks, slow = nodes * per_node, nodes * per_node // 3
    times = Simulated(ranks, steps, slow)
    made: dict[int, TraceSummary] = {}
    for rank in range(ranks):
        node, local = divmod(rank, per_node)
        like = slow if rank == slow else -1 - local
        if like not in made:
            made[like] = summarise(_trace(times, rank, ranks, content))
        # A trace's zero is the start of the first step, on its node's clock.
        first = json.loads(run.records(rank).read_bytes().split(b"\n", 1)[0])
        summary = msgspec.structs.replace(
            made[like],
            rank=rank,
            host=first["host"],
            epoch_ns=first["wall_start_ns"],
            source=str(run.torch_profiler / f"rank{rank}" / "trace.json"),
        )
        write_json(run.node(node).trace_summary(rank), summary)
    for node in range(nodes):
        own = list(range(node * per_node, (node + 1) * per_node))
        write_json(run.node(node).reduction, Reduction(node_index=node, ranks=own, problems=[]))
    return run, slow


def _trace(times: Simulated, rank: int, ranks: int, content: Content) -> Trace:
    """One rank's trace over all steps, ns since the first one's start."""
    noise = np.random.default_rng(rank)
    steps = times.start.shape[1]
    kernels, calls = max(content.kernels // steps, 10), max(content.calls // steps, 2)
    compute, called = _kernels(times, rank, kernels, noise), _calls(times, rank, calls, noise)
    spans = np.concatenate((compute.reshape(-1, 2), called.reshape(-1, 2)))
    communicates = np.arange(len(spans)) >= steps * kernels
    names = [
        f"void at::native::kernel_{code}<{'float, ' * 16}128>(TensorInfo)" for code in range(content.names)
    ]
    names += ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", "0"]
    nccl, op, group = range(content.names, content.names + 3)
    name = np.where(communicates, nccl, np.arange(len(spans)) % kernels % content.names)
    order = np.argsort(spans[:, 0], kind="stable")
    spans, communicates, name = spans[order], communicates[order], name[order]
    number = np.arange(len(spans))
    gpu = build(
        GpuEvents, len(spans), start_ns=spans[:, 0], end_ns=spans[:, 1], device=rank % RANKS_PER_NODE,
        kind=np.where(communicates, int(Kind.COMMUNICATION), int(Kind.COMPUTE)), name=name, shape=name,
        correlation=number, stream=np.where(communicates, 20, 7),
    )  # fmt: skip
    events = np.flatnonzero(communicates)
    collectives = build(
        TracedCollectives, len(events), event=events, op=op, group=group, sequence=np.arange(len(events)),
        bytes_in=1 << 20, bytes_out=1 << 20, group_size=ranks,
    )  # fmt: skip
    launched = spans[:, 0] - noise.integers(*_LAUNCH_NS, len(spans))
    host, labels = _host(times, rank, launched, len(names))
    return replace(
        empty_trace("generated", "kineto"), rank=rank, rank_basis="distributedInfo", world_size=ranks,
        gpu=gpu, collectives=collectives, host=host, names=(*names, *labels),
    )  # fmt: skip


def _kernels(times: Simulated, rank: int, count: int, noise: np.random.Generator) -> Ints:
    """Kernels of forward, backward and optimizer: (steps, count, 2); each fills its part but for gaps."""
    shares = (count * 7 // 10, count * 2 // 10)
    parts = []
    bounds = (
        (times.loaded, times.first, shares[0]),
        (times.first, times.second, shares[1]),
        (times.exposed_end, times.done, count - sum(shares)),
    )
    for begin, end, here in bounds:
        start, length = begin[rank][:, None], (end[rank] - begin[rank])[:, None]
        weights = noise.exponential(size=(len(start), here)) + 0.05
        share = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
        edges = start + np.concatenate((np.zeros_like(start), (share * length).astype(np.int64)), axis=1)
        room = np.diff(edges, axis=1)
        gaps = np.minimum(noise.integers(*_GAP_NS, room.shape), room // 2)
        parts.append(np.stack((edges[:, :-1], edges[:, 1:] - gaps), axis=2))
    return np.concatenate(parts, axis=1)


def _calls(times: Simulated, rank: int, count: int, noise: np.random.Generator) -> Ints:
    """The two all-reduces, each cut into calls that end together on all ranks: (steps, count, 2)."""
    hidden_end = times.hidden_end.max(axis=0)
    halves = (
        (times.first.max(axis=0), hidden_end, count // 2),
        (np.maximum(times.second.max(axis=0), hidden_end), times.exposed_end.max(axis=0), count - count // 2),
    )
    parts: list[Ints] = []
    came = times.first[rank]
    for together, end, here in halves:
        cuts = together[:, None] + (end - together)[:, None] * np.arange(1, here + 1) // here
        ends = cuts - noise.integers(0, _APART_NS, cuts.shape)
        starts = np.concatenate((came[:, None], ends[:, :-1] + _APART_NS), axis=1)
        parts.append(np.stack((starts, ends), axis=2))
        came = np.maximum(times.second[rank], ends[:, -1] + _APART_NS)
    return np.concatenate(parts, axis=1)


def _host(times: Simulated, rank: int, launched: Ints, first: int) -> tuple[TraceRanges, list[str]]:
    """Launches, loaders, waits for the second exchange, step ranges; and the names from code `first` on."""
    start, loaded, end = times.start[rank], times.loaded[rank], times.end[rank]
    labels = [
        "cudaLaunchKernel",
        "enumerate(DataLoader)",
        "cudaStreamSynchronize",
        *(f"ProfilerStep#{at}" for at in range(len(start))),
    ]
    waits = times.second[rank], times.exposed_end[rank]
    columns = [
        (
            launched,
            launched + 3_000,
            RangeRole.LAUNCH,
            np.full(len(launched), first),
            np.arange(len(launched)),
        ),
        (start, loaded, RangeRole.LOADER, np.full(len(start), first + 1), np.full(len(start), -1)),
        (*waits, RangeRole.SYNC, np.full(len(start), first + 2), np.full(len(start), -1)),
        (start, end, RangeRole.STEP, first + 3 + np.arange(len(start)), np.full(len(start), -1)),
    ]
    starts, ends, names, links = (np.concatenate([part[at] for part in columns]) for at in (0, 1, 3, 4))
    role = np.concatenate([np.full(len(part[0]), int(part[2])) for part in columns])
    order = np.argsort(starts, kind="stable")
    host = build(
        TraceRanges, len(order), start_ns=starts[order], end_ns=ends[order], role=role[order], lane=1,
        name=names[order], correlation=links[order],
    )  # fmt: skip
    return host, labels


def measure(nodes: int, per_node: int, steps: int, content: Content, folder: Path) -> dict[str, Any]:
    """One row of the table; the run is written unless it is there.

    Raises:
        SystemExit: the analysis is not of the traces, has a problem, or names another rank.
    """
    ranks = nodes * per_node
    results, docs = folder / f"results_{ranks}", folder / f"docs_{ranks}"
    if not results.exists():
        write_run(results, nodes, per_node, steps, content)
    run = RunDir(next(results.glob("*/run_*")))
    sizes = [path.stat().st_size for _, node in run.nodes() for path in node.trace_summaries().values()]
    seconds, peak = aggregate(results, docs)
    made = json.loads((run.root / "profiling_analysis.json").read_bytes())
    check(made, ranks)
    return {
        "ranks": ranks,
        "summaries_mib": sum(sizes) / 2**20,
        "seconds": seconds,
        "peak_mib": peak,
        "verdict": made["verdict"]["kind"],
        "named": made["verdict"]["ranks"],
        "traced_steps": made["breakdown"]["steps"],
    }


def check(made: dict[str, Any], ranks: int) -> None:
    """That an analysis is of the traces' summaries and right.

    Raises:
        SystemExit: as `measure`.
    """
    traces = made["traces"]
    found = {
        "timing": made["breakdown"]["timing"],
        "from summaries": traces is not None and traces["from_summaries"],
        "ranks": len(made["breakdown"]["per_rank"]),
        "problems": made["data_quality"]["problems"],
        "verdict": (made["verdict"]["kind"], made["verdict"]["ranks"]),
    }
    right = {
        "timing": "kineto",
        "from summaries": True,
        "ranks": ranks,
        "problems": [],
        "verdict": ("straggler", [ranks // 3]),
    }
    if found != right:
        raise SystemExit(f"expected {right}, found {found}; notes: {made['data_quality']['notes']}")


def describe(base: Path, sizes: list[int]) -> None:
    """Print what the summaries of traces of these MB hold, made of `base`."""
    print("    MB  steps  kernels   calls  summary KiB  a MB: KiB  intervals   calls")
    with tempfile.TemporaryDirectory() as scratch:
        for megabytes in sizes:
            path = Path(scratch) / "rank0.json"
            generate(base, path, megabytes, "many")
            size = path.stat().st_size / 1e6
            trace = replace(read_traces([path]).traces[0], rank=0)
            summary = summarise(trace)
            whole = len(msgspec.json.format(msgspec.json.encode(summary), indent=2))
            calls = summary.timeline.calls.step.count if summary.timeline else 0
            kernels = summary.timeline.compute.count // 2 if summary.timeline else 0
            print(
                f"{size:6.0f} {len(summary.steps):6d} {summary.gpu_events:8d} {calls:7d} {whole / 1024:12.0f}"
                f" {whole / 1024 / size:10.2f} {kernels / size:10.1f} {calls / size:7.1f}"
            )
            print(
                "        " + ", ".join(f"{name} {bytes_ / 1024:.0f} KiB" for name, bytes_ in parts(summary))
            )


def parts(summary: TraceSummary) -> list[tuple[str, int]]:
    """The bytes of each part of a summary as it is written, largest first."""

    def written(value: object) -> int:
        return len(msgspec.json.format(msgspec.json.encode(value), indent=2))

    sizes = {"steps": written(summary.steps), "kernels": written(summary.kernels)}
    sizes["collectives"] = written(summary.collectives)
    if summary.timeline is not None:
        line = summary.timeline
        sizes |= {name: written(getattr(line, name)) for name in ("compute", "communication", "data")}
        for name in line.calls.__struct_fields__:
            value = getattr(line.calls, name)
            if isinstance(value, Packed):
                sizes[f"calls' {name}"] = written(value)
    return sorted(sizes.items(), key=lambda item: -item[1])


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['ranks']:6d} {row['summaries_mib']:14.0f} {row['seconds']:8.1f} {row['peak_mib']:9.0f}"
        f" {row['traced_steps']:6d}  {row['verdict']} {row['named']}"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--base", type=Path, help="a Kineto trace: print what summaries of such traces hold")
    parser.add_argument("--mb", type=int, nargs="+", default=[25, 50, 100])
    given = parser.parse_args()
    if given.base:
        describe(given.base, given.mb)
        return

    def measured(nodes: int, folder: Path) -> dict[str, Any]:
        return measure(nodes, RANKS_PER_NODE, given.steps, Content(), folder)

    run_sizes(given, given.nodes, measured, " ranks  summaries MiB  seconds  peak MiB  steps  verdict", _line)


if __name__ == "__main__":
    main()
