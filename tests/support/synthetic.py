"""Synthetic run directories of the true schema: a small deterministic simulation of data-parallel ranks.

Each step of each rank is: loader wait, forward, backward with two gradient buckets, optimizer, host work. A
bucket's all-reduce begins when the rank has entered it and its previous one has ended; it ends on every rank
`transfer` after the last rank began. So a slow rank shows in the *others'* communication, as it really does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from aorta import intervals
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import (
    Breakdown,
    ClockTriple,
    GpuInfo,
    Manifest,
    NodeInfo,
    NodeStatus,
    ProfilerChoice,
    RankExit,
    ResolvedPlan,
    RunStatus,
)
from aorta.artefacts.step_record import Overlap, Range, StepProfile, StepRecord
from aorta.config.load import save_config
from aorta.units import NS_PER_MS, NS_PER_S, ns_to_ms
from tests.support.run_spec import START_MONO_NS, START_WALL_NS, RunSpec
from tests.support.synthetic_csv import write_metrics_csv, write_monitors

__all__ = [
    "START_MONO_NS",
    "START_WALL_NS",
    "RunSpec",
    "node_status",
    "simulate",
    "write_account",
    "write_run",
]


@dataclass(slots=True)
class _Step:
    """One rank's step in the simulation, ns on the common clock."""

    start: int
    data_end: int
    compute: list[tuple[int, int]]
    entries: list[int]
    ends: list[int] = field(default_factory=list)
    end: int = 0


def write_run(results: Path, spec: RunSpec | None = None) -> RunDir:
    """Write a complete run below `results` and return its directory; delete or truncate files to break it."""
    spec = spec or RunSpec()
    run = RunDir.of(results, Scenario(spec.name), spec.job_id)
    run.root.mkdir(parents=True)
    timeline = simulate(spec)
    for rank, steps in enumerate(timeline):
        lines = [msgspec.json.encode(record) for record in _records(spec, rank, steps)]
        run.records(rank).write_bytes(b"\n".join(lines) + b"\n")
    last_ns = max(steps[-1].end for steps in timeline)
    write_account(run, spec, last_ns)
    for node in range(spec.nodes):
        write_monitors(run, spec, node, last_ns)
    return run


def write_account(run: RunDir, spec: RunSpec, last_ns: int) -> None:
    """What a run says about itself, beside its records and samples; `last_ns` is its last step's end."""
    save_config(spec.resolved_config(), run.config)
    _write_manifest(run, spec)
    _write_status(run, spec, last_ns)
    write_metrics_csv(run, spec, last_ns)
    run.job_metadata.write_text(f"Job ID: {spec.job_id}\nScenario: {spec.name}\n", encoding="utf-8")


def simulate(spec: RunSpec) -> list[list[_Step]]:
    """Steps of every rank; time 0 is the start of the first step."""
    noise = random.Random(spec.seed)
    clocks = [0] * spec.ranks
    timeline: list[list[_Step]] = [[] for _ in range(spec.ranks)]
    transfers = [_ns(spec.hidden_comm_ms), _ns(spec.exposed_comm_ms)]
    for number in range(spec.steps):
        timing = spec.detail_ms if spec.is_detailed(number) else 0.0
        now = [_until_backward(spec, rank, clocks[rank], noise) for rank in range(spec.ranks)]
        if any(transfers) and spec.ranks > 1:
            _all_reduce(now, transfers)
        for rank, step in enumerate(now):
            compute = _ns(spec.compute_ms + spec.extra_compute_ms.get(rank, 0.0))
            begin = max([step.compute[-1][1], *step.ends])
            step.compute.append((begin, begin + compute // 10))
            step.end = step.compute[-1][1] + _ns(spec.host_ms + spec.extra_host_ms.get(rank, 0.0) + timing)
            clocks[rank] = step.end
            timeline[rank].append(step)
    return timeline


def _until_backward(spec: RunSpec, rank: int, start: int, noise: random.Random) -> _Step:
    data_end = start + _ns(spec.data_wait_ms + spec.extra_data_ms.get(rank, 0.0))
    compute = _ns(spec.compute_ms + spec.extra_compute_ms.get(rank, 0.0))
    jitter = round(noise.uniform(0.0, spec.jitter_ms) * NS_PER_MS)
    first = data_end + compute * 7 // 10 + jitter
    second = first + compute * 2 // 10
    return _Step(start, data_end, [(data_end, first), (first, second)], entries=[first, second])


def _all_reduce(now: list[_Step], transfers: list[int]) -> None:
    for bucket, transfer in enumerate(transfers):
        begins = [max([step.entries[bucket], *step.ends]) for step in now]
        for step in now:
            step.ends.append(max(begins) + transfer)


def _ns(ms: float) -> int:
    return round(ms * NS_PER_MS)


def _records(spec: RunSpec, rank: int, steps: list[_Step]) -> list[StepRecord]:
    node, local_rank = divmod(rank, spec.ranks_per_node)
    offset = spec.clock_offset_ns.get(node, 0) + round(spec.startup_s * NS_PER_S)
    cuda = spec.device == "cuda"
    records = []
    for number, step in enumerate(steps):
        profile, breakdown = _profile(number, step, cuda)
        detailed = spec.is_detailed(number)
        records.append(
            StepRecord(
                run_id=f"run-{spec.job_id}",
                job_id=spec.job_id,
                host=spec.host(node),
                attempt=0,
                rank=rank,
                local_rank=local_rank,
                world_size=spec.ranks,
                device=f"cuda:{local_rank}" if cuda else "cpu",
                device_uuid=f"GPU-{node}-{local_rank}" if cuda else None,
                epoch=0,
                step=number,
                global_step=number,
                phase="warmup" if number < spec.warmup else "steady",
                wall_start_ns=START_WALL_NS + offset + step.start,
                wall_end_ns=START_WALL_NS + offset + step.end,
                mono_start_ns=START_MONO_NS + offset + step.start,
                mono_end_ns=START_MONO_NS + offset + step.end,
                samples=spec.batch_size,
                data_wait_ms=ns_to_ms(step.data_end - step.start),
                timing="event_window" if cuda else "host",
                breakdown=breakdown if detailed else None,
                loss=0.7 - 0.001 * number,
                grad_norm=1.0,
                lr=3e-4,
                memory_peak_bytes=(20 << 30) if cuda and detailed else None,
                memory_total_bytes=(80 << 30) if cuda and detailed else None,
                profile=profile if detailed else _bare(profile),
                detailed=detailed,
            )
        )
    return records


def _profile(number: int, step: _Step, cuda: bool) -> tuple[StepProfile, Breakdown]:
    busy = intervals.as_intervals(step.compute)
    comm = intervals.as_intervals(list(zip(step.entries, step.ends, strict=False)))
    data = intervals.as_intervals([(step.start, step.data_end)])
    busy_ns, comm_ns = intervals.length(busy), intervals.length(comm)
    exposed = intervals.subtract(comm, busy)
    idle_data = intervals.subtract(intervals.subtract(data, busy), comm)
    total, exposed_ns, data_ns = step.end - step.start, intervals.length(exposed), intervals.length(idle_data)
    breakdown = Breakdown(
        compute_ns=busy_ns,
        exposed_comm_ns=exposed_ns,
        exposed_copy_ns=0 if cuda else None,
        data_wait_ns=data_ns,
        host_ns=total - busy_ns - exposed_ns - data_ns,
        comm_ns=comm_ns,
        hidden_comm_ns=comm_ns - exposed_ns,
    )
    ranges = [_range(step, "host", "data", step.start, step.data_end)]
    tags = ("forward", "backward", "optimizer")
    ranges += [_range(step, "compute", tag, *span) for tag, span in zip(tags, step.compute, strict=True)]
    for bucket, (entry, end) in enumerate(zip(step.entries, step.ends, strict=False)):
        metadata = {"op": "all_reduce", "group": "default", "seq": 2 * number + bucket, "bytes": 1 << 20}
        ranges.append(_range(step, "allreduce", f"bucket{bucket}", entry, end, metadata))
    hidden_ms = ns_to_ms(comm_ns - exposed_ns)
    overlap = Overlap(
        per_stream_ms={"compute": ns_to_ms(busy_ns), "allreduce": ns_to_ms(comm_ns)},
        overlap_ms={
            "compute_allreduce": hidden_ms,
            "compute_reducescatter": 0.0,
            "compute_comm": hidden_ms,
            "idle": ns_to_ms(total - busy_ns - exposed_ns),
        },
        overlap_ratio=(comm_ns - exposed_ns) / comm_ns if comm_ns else None,
        active_segments=[],
        utilization=busy_ns / total,
    )
    return StepProfile(
        index=number, total_ms=ns_to_ms(total), ranges=ranges, markers=[], overlap=overlap
    ), breakdown


def _bare(profile: StepProfile) -> StepProfile:
    """That of a step timed as a whole."""
    overlap = Overlap(
        per_stream_ms={}, overlap_ms={}, overlap_ratio=None, active_segments=[], utilization=None
    )
    return replace(profile, ranges=[], overlap=overlap)


def _range(
    step: _Step, stream: str, tag: str, start: int, end: int, metadata: dict[str, Any] | None = None
) -> Range:
    return Range(
        stream=stream,
        tag=tag,
        start_ms=ns_to_ms(start - step.start),
        end_ms=ns_to_ms(end - step.start),
        duration_ms=ns_to_ms(end - start),
        metadata=metadata,
    )


def _node_info(spec: RunSpec, node: int) -> NodeInfo:
    cuda = spec.device == "cuda"
    gpus = [
        GpuInfo(index=i, uuid=f"GPU-{node}-{i}", name="Test GPU", memory_total_bytes=80 << 30)
        for i in range(spec.ranks_per_node)
    ]
    clock = ClockTriple(realtime_ns=START_WALL_NS, monotonic_ns=START_MONO_NS, boottime_ns=START_MONO_NS)
    return NodeInfo(
        node_index=node,
        host=spec.host(node),
        slurm_node=spec.host(node) if spec.executor == "slurm" else None,
        attempt=0,
        cpus_usable=2,
        memory_limit_bytes=spec.job_memory_limit_bytes,
        gpus=gpus if cuda else [],
        processes=spec.ranks_per_node,
        clock=clock,
        profiler=ProfilerChoice(requested="auto", resolved="none", reason="no profiler on PATH"),
        packages={"torch": "2.13.0"},
        environment={},
    )


def _write_manifest(run: RunDir, spec: RunSpec) -> None:
    infos = [_node_info(spec, node) for node in range(spec.nodes)]
    for info in infos:
        write_json(run.node(info.node_index).info, info)
    plan = ResolvedPlan(
        scenario=spec.name,
        nodes=spec.nodes,
        processes_per_node=spec.ranks_per_node,
        gpus_per_node=spec.ranks_per_node if spec.device == "cuda" else None,
        command=["python", "-m", "aorta.workloads.trainer"],
        profiler="auto",
        monitor_interval_s=spec.monitor_interval_s,
        workload="ranking",
    )
    manifest = Manifest(
        run_id=f"run-{spec.job_id}",
        job_id=spec.job_id,
        executor="local" if spec.executor == "local" else "slurm",
        attempt=0,
        scenario=spec.name,
        started_wall_ns=START_WALL_NS,
        submitted_wall_ns=START_WALL_NS - 5 * NS_PER_S,
        code_version="0.1.0",
        world_size=spec.ranks,
        plan=plan,
        nodes=infos,
        nodes_missing=[],
        shared_machine=spec.executor == "local",
    )
    write_json(run.manifest, manifest)


def node_status(spec: RunSpec, node: int, last_ns: int = 0) -> NodeStatus:
    """The terminal marker of a node."""
    failed = spec.state != "completed"
    ranks = range(node * spec.ranks_per_node, (node + 1) * spec.ranks_per_node)
    return NodeStatus(
        node_index=node,
        host=spec.host(node),
        attempt=0,
        state=spec.state,  # type: ignore[arg-type]
        started_wall_ns=START_WALL_NS,
        ended_wall_ns=None if spec.state == "running" else START_WALL_NS + last_ns,
        exit_code=None if spec.state == "running" else int(failed),
        ranks=[RankExit(rank=rank, exit_code=int(failed), signal=None) for rank in ranks],
    )


def _write_status(run: RunDir, spec: RunSpec, last_ns: int) -> None:
    nodes = [node_status(spec, node, last_ns) for node in range(spec.nodes)]
    for status in nodes:
        write_json(run.node(status.node_index).status, status)
    merged = RunStatus(job_id=spec.job_id, attempt=0, state=nodes[0].state, nodes=nodes, nodes_missing=[])
    write_json(run.status, merged)
