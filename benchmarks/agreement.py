"""Do the step records agree with a kernel trace of the same steps?

    torchrun --nproc_per_node 2 benchmarks/agreement.py [--samples 4] [--json FILE]

Trains FSDP2 (full, and hybrid with four ranks or more) and DDP where the GPU is the bottleneck (`gpu`: wide
layers, 32 samples) and where the host is (`host`: the default configuration), sampling steps by kernels.
The trace of each sampled step is read a second time by the trace reader of the analysis, which takes the step
to be what its record's clocks say. Per
sampled step and rank:

- execution of communication and overlap ratio in the record, against the trace: within 2% (0.02);
- windows of the collectives, never below execution by more than 1%;
- the excess of the windows, split into launch, queueing (and how much of that behind another collective of
  the same communicator) and tail.

Needs an NVIDIA GPU. The first recording of a process is left out: it starts the driver's tracing.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch.distributed as dist
from loops import WIDE, Training, say, settings, shared_folder, strategies, write

from aorta.artefacts.events import Kind
from aorta.artefacts.step_record import StepRecord
from aorta.instrument import activity, sampler
from aorta.intervals import clip, intersection, length
from aorta.readers.kineto import read
from aorta.workloads.trainer.world import World, join

INTERVAL = 6
EXECUTION_TOLERANCE = 0.02
WINDOW_TOLERANCE = 0.01
SIZES: dict[str, list[str]] = {"gpu": [*WIDE, "training.batch_size=32"], "host": []}


def keep_traces(kept: list[bytes]) -> None:
    """Have the sampler leave a copy of each trace that it reads."""

    def kernels_of(trace: bytes, since_wall_ns: int) -> list[activity.Kernel]:
        kept.append(trace)
        return activity.kernels_of(trace, since_wall_ns)

    sampler.kernels_of = kernels_of  # type: ignore[attr-defined]


def against_trace(record: StepRecord, path: Path) -> dict[str, Any]:
    """One sampled step: the record's numbers, the trace's, and the parts of the excess."""
    trace = read(path)
    assert record.execution is not None
    assert trace.epoch_ns is not None
    start, end = record.wall_start_ns - trace.epoch_ns, record.wall_end_ns - trace.epoch_ns
    compute = clip(trace.gpu.intervals(Kind.COMPUTE), start, end)
    communication = clip(trace.gpu.intervals(Kind.COMMUNICATION), start, end)
    comm = length(communication) / 1e6
    hidden = length(intersection(compute, communication)) / 1e6
    execution = record.execution
    excess = execution.excess_ms.values()
    window = sum(execution.window_ms.values())
    return {
        "step_ms": (record.mono_end_ns - record.mono_start_ns) / 1e6,
        "record_comm_ms": execution.comm_ms,
        "trace_comm_ms": comm,
        "record_compute_ms": execution.per_stream_ms["compute"],
        "trace_compute_ms": length(compute) / 1e6,
        "record_ratio": execution.overlap_ratio or 0.0,
        "trace_ratio": hidden / comm if comm else 0.0,
        "window_ms": window,
        "window_ratio": record.profile.overlap.overlap_ratio if record.profile else None,
        "launch_ms": sum(part.launch_ms for part in excess),
        "queue_ms": sum(part.queue_ms for part in excess),
        "behind_ms": sum(part.behind_ms or 0.0 for part in excess),
        "tail_ms": sum(part.tail_ms for part in excess),
        "unmatched": execution.unmatched,
        "streams": {
            name: {"execution_ms": execution.per_stream_ms[name], "window_ms": execution.window_ms.get(name)}
            for name in ("allgather", "reducescatter", "allreduce")
        },
    }


def measure(size: str, strategy: str, world: World, folder: Path, samples: int) -> list[dict[str, Any]]:
    """All sampled steps of this rank."""
    kept: list[bytes] = []
    keep_traces(kept)
    overrides = [*SIZES[size], *strategies(world)[strategy], f"capture.kernel_interval={INTERVAL}"]
    run = Training(settings(False, *overrides), world, folder)
    for _ in range(INTERVAL * (samples + 1)):
        run.step()
    run.close()
    sampled = [record for record in run.records if record.execution is not None]
    found = []
    for index, (record, trace) in enumerate(zip(sampled, kept, strict=True)):
        path = folder / f"rank{world.rank}_{index}.pt.trace.json"
        path.write_bytes(trace)
        if index:
            found.append(against_trace(record, path))
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Worst disagreement and median parts over steps and ranks."""

    def middle(key: str) -> float:
        return statistics.median(row[key] for row in rows)

    off = max(abs(row["record_comm_ms"] / row["trace_comm_ms"] - 1) for row in rows)
    compute_off = max(abs(row["record_compute_ms"] / row["trace_compute_ms"] - 1) for row in rows)
    ratio_off = max(abs(row["record_ratio"] - row["trace_ratio"]) for row in rows)
    below = min(row["window_ms"] / row["record_comm_ms"] - 1 for row in rows)
    return {
        "steps": len(rows),
        "step_ms": middle("step_ms"),
        "comm_ms": middle("record_comm_ms"),
        "comm_off": off,
        "compute_off": compute_off,
        "ratio": middle("record_ratio"),
        "ratio_off": ratio_off,
        "window_ms": middle("window_ms"),
        "window_ratio": middle("window_ratio"),
        "window_below": below,
        "launch_ms": middle("launch_ms"),
        "queue_ms": middle("queue_ms"),
        "behind_ms": middle("behind_ms"),
        "tail_ms": middle("tail_ms"),
        "unmatched": sum(row["unmatched"] for row in rows),
        "met": off <= EXECUTION_TOLERANCE
        and ratio_off <= EXECUTION_TOLERANCE
        and below >= -WINDOW_TOLERANCE
        and not any(row["unmatched"] for row in rows),
    }


HEAD = (
    f"{'size':<6}{'strategy':<10}{'step':>8}{'exec':>8}{'off':>8}{'ratio':>7}{'off':>8}{'window':>8}"
    f"{'least':>8}{'launch':>8}{'queue':>8}{'behind':>8}{'tail':>7}   (ms; window over execution at least)"
)


def line(size: str, strategy: str, row: dict[str, Any]) -> str:
    return (
        f"{size:<6}{strategy:<10}{row['step_ms']:>8.2f}{row['comm_ms']:>8.3f}{row['comm_off']:>8.2%}"
        f"{row['ratio']:>7.3f}{row['ratio_off']:>8.4f}{row['window_ms']:>8.3f}{row['window_below']:>+8.1%}"
        f"{row['launch_ms']:>8.3f}{row['queue_ms']:>8.3f}{row['behind_ms']:>8.3f}{row['tail_ms']:>7.3f}"
        f"{'' if row['met'] else '   NOT MET'}"
        f"{'   unmatched: ' + str(row['unmatched']) if row['unmatched'] else ''}"
    )


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--samples", type=int, default=4)
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    results: list[dict[str, Any]] = []
    with join(settings(False)) as world:
        if world.device.type != "cuda":
            say(world, "agreement: no NVIDIA GPU here, so there is no kernel to agree with")
            return
        folder = shared_folder(world)
        say(world, HEAD)
        for size in SIZES:
            for strategy in strategies(world):
                mine = measure(size, strategy, world, folder / f"{size}_{strategy}", given.samples)
                everyone: list[Any] = [None] * world.size
                dist.all_gather_object(everyone, mine, group=world.control)
                row = summary([row for rows in everyone for row in rows])
                results.append({"size": size, "strategy": strategy, **row, "ranks": everyone})
                say(world, line(size, strategy, row))
        write(given.json, world, {"tolerance": EXECUTION_TOLERANCE, "results": results})


if __name__ == "__main__":
    main()
