"""Kineto traces of simulated meshes, with the arguments that torch's profiler gives NCCL's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import kineto
from tests.support.simulated import Done, Op

MAIN, AUTOGRAD = 1, 2
_SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": _SEND_RECV,
    "all_to_all": _SEND_RECV,
}
_ITEM = 2
_AHEAD = 20.0
_LAUNCH = 4


@dataclass(frozen=True, slots=True)
class Style:
    """What a program's traces look like."""

    described: Mapping[str, str] = field(default_factory=dict)
    """Description of each group; `undefined` where there is none."""
    coalesced: bool = True
    """A batch's kernel has no arguments: the operators before its launch do."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Other names of kernels."""
    labels: bool = False
    """Passes have ranges of their own on the host."""
    steps: bool = True
    shift: Mapping[int, float] = field(default_factory=dict)
    """µs by which each rank's clock is ahead."""
    arguments: bool = True
    """Kernels carry the arguments of their calls."""
    config: bool = True
    """`distributedInfo` has `pg_config`."""
    numbered: bool = False
    """Calls only number their group, and `pg_config` describes it."""


def write(
    folder: Path,
    done: Mapping[int, Sequence[Done]],
    style: Style,
    ranks: Sequence[int] | None = None,
) -> list[Path]:
    """Writes a trace of each rank, and returns the files.

    Args:
        folder: of the traces.
        done: what every rank did.
        style: of the traces.
        ranks: only of these.
    """
    groups = {
        name: (number, ranks) for number, (name, ranks) in enumerate(sorted(_groups(done).items()), start=1)
    }
    config = [
        {"pg_name": str(number), "pg_desc": style.described.get(name, "undefined"), "ranks": list(members)}
        for name, (number, members) in groups.items()
    ]
    made = []
    for rank in sorted(done) if ranks is None else ranks:
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": len(done)}
        if style.config:
            info["pg_config"] = [one for one in config if rank in one["ranks"]]
        events = _events(rank, done[rank], style, groups)
        made.append(kineto.write(folder / f"rank{rank}.json", events, distributedInfo=info))
    return made


def _groups(done: Mapping[int, Sequence[Done]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for rank, items in done.items():
        for item in items:
            for op in item.op.calls or (item.op,):
                if op.group:
                    found.setdefault(op.group, set()).update((rank, *op.ranks))
                    if op.peer >= 0:
                        found[op.group].add(op.peer)
    return {name: tuple(sorted(members)) for name, members in found.items()}


def _events(
    rank: int, done: Sequence[Done], style: Style, groups: Mapping[str, tuple[int, tuple[int, ...]]]
) -> list[dict[str, Any]]:
    shift = style.shift.get(rank, 0.0) + 1_000.0
    events: list[dict[str, Any]] = []
    begins = {step: min(one.begin for one in done if one.step == step) for step in {one.step for one in done}}
    # The host launches a step in one go, as soon as the GPU can begin it.
    host = {step: begin + shift - _AHEAD for step, begin in begins.items()}
    for step, at in host.items() if style.steps else ():
        after = host.get(step + 1, max(one.end for one in done) + shift)
        events.append(kineto.event("user_annotation", f"ProfilerStep#{step}", at, after - at, tid=MAIN))
        launched = at + _LAUNCH * (sum(one.step == step for one in done) + 1)
        last = max(one.end for one in done if one.step == step and one.op.kind != "send") + shift
        if last - 5 > launched:
            events.append(
                kineto.event("cuda_runtime", "cudaStreamSynchronize", launched, last - 5 - launched, tid=MAIN)
            )
    number = dict.fromkeys(host, 0)
    for item in done:
        at = host[item.step] + number[item.step]
        number[item.step] += _LAUNCH
        correlation = 1_000_000 * (rank + 1) + 10 * len(events) + 1
        events += _launched(rank, item, at, correlation, style, groups, shift)
    return events


def _launched(
    rank: int,
    item: Done,
    at: float,
    correlation: int,
    style: Style,
    groups: Mapping[str, tuple[int, tuple[int, ...]]],
    shift: float,
) -> list[dict[str, Any]]:
    op, start, took = item.op, item.begin + shift, item.end - item.begin
    thread = AUTOGRAD if op.kind in "BW" else MAIN
    call = kineto.event("cuda_runtime", "cudaLaunchKernel", at + 2, 0.5, tid=thread, correlation=correlation)
    if op.kind in "FBW" or op.kind == "work":
        name = {"F": "gemm_f", "B": "gemm_b", "W": "gemm_w"}.get(op.kind, "adam")
        parts = [call, kineto.kernel(name, start, took, correlation=correlation)]
        if style.labels and op.label:
            parts.insert(0, kineto.event("user_annotation", op.label, at + 1, 2, tid=MAIN))
        return parts
    kernel = _SEND_RECV if op.kind in ("send", "recv", "batch") else _KERNELS[op.kind]
    kernel = style.renamed.get(kernel, kernel)
    stream = 20 + (op.peer + 1 if op.kind in ("send", "recv") else groups[op.group][0] % 7 if op.group else 9)
    said = [_named(rank, one, style, groups) for one in (op.calls or (op,))]
    comms = [
        kineto.event("cpu_op", "record_param_comms", at + 0.1 * place, 0.05, tid=MAIN, **one)
        for place, one in enumerate(said)
    ]
    alone = style.arguments and not op.calls and not (style.coalesced and op.kind in ("send", "recv"))
    arguments = said[0] if alone else {}
    return [
        *comms,
        call,
        kineto.kernel(kernel, start, took, stream=stream, correlation=correlation, **arguments),
    ]


def _named(
    rank: int, op: Op, style: Style, groups: Mapping[str, tuple[int, tuple[int, ...]]]
) -> dict[str, Any]:
    number, members = groups[op.group]
    said = style.described.get(op.group, "undefined")
    count = op.size // _ITEM
    sizes = [size // _ITEM for size in op.sizes]
    named: dict[str, Any] = {
        "Collective name": op.kind,
        "Process Group Name": str(number),
        **({} if style.numbered else {"Process Group Description": said}),
        "Process Group Ranks": str(list(members)),
        "Group size": len(members),
        "In msg nelems": sum(sizes) if sizes else count,
        "Out msg nelems": count,
        "In split size": str(sizes),
        "Out split size": "[]",
        "dtype": "BFloat16",
    }
    if op.kind == "send":
        named["Dst Rank"] = op.peer
    if op.kind == "recv":
        named["Src Rank"] = op.peer
    return named
