"""Tells the ranks among the processes of an nsys export."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import ABSENT, GpuEvents, Kind
from aorta.readers.trace_build import file_rank
from aorta.readers.trace_sqlite import Database
from aorta.units import plural

_PID_MASK = 0xFFFFFF
"""The low bits of a process in an export are its number; the others are the machine."""

Rank = tuple[int | None, str | None]


def rank_numbers(
    database: Database, gpu: Mapping[int, GpuEvents], marked: Mapping[int, int], training: Collection[int]
) -> tuple[dict[int, Rank], tuple[Problem, ...]]:
    """Returns the rank of each process with its basis, and a problem for processes that are no ranks.

    The basis is an NVTX mark, the file's name, or the order of devices.

    Args:
        database: the export.
        gpu: the GPU events of each process.
        marked: the rank that a process called itself.
        training: the processes that mark steps or communicate.
    """
    chosen = [process for process in gpu if process in marked]
    if not chosen and training and len(gpu) > 1:
        chosen = [process for process in gpu if process in training]
    chosen = chosen or list(gpu)
    others = [process for process in gpu if process not in chosen]
    return dict(zip(chosen, _numbers(database, {p: gpu[p] for p in chosen}, marked), strict=True)), _named(
        database, gpu, others
    )


def _named(database: Database, gpu: Mapping[int, GpuEvents], others: list[int]) -> tuple[Problem, ...]:
    if not others:
        return ()
    events = sum(len(gpu[process]) for process in others)
    pids = ", ".join(str(process & _PID_MASK) for process in others)
    reason = (
        f"{plural(events, 'GPU event')} of process {pids} left out: they have no rank, no steps and no "
        "communication"
    )
    return (Problem(file=str(database.path), reason=reason),)


def _numbers(database: Database, gpu: Mapping[int, GpuEvents], marked: Mapping[int, int]) -> list[Rank]:
    if gpu and all(process in marked for process in gpu):
        return [(marked[process], "an NVTX mark") for process in gpu]
    if len(gpu) == 1:
        named = file_rank(database.path)
        return [(named, None if named is None else "the file's name")]
    devices = [_devices(database, process, events) for process, events in gpu.items()]
    # One process on each of several GPUs is how launchers number ranks on a node; anything else is not told.
    own = [next(iter(used)) for used in devices if len(used) == 1]
    if len(own) == len(gpu) == len(set(own)):
        order = sorted(own)
        return [(order.index(device), "the order of devices") for device in own]
    return [(None, None)] * len(gpu)


def _devices(database: Database, process: int, gpu: GpuEvents) -> set[int]:
    """The GPUs that a process ran kernels on, by the machine's numbering where the export has it."""
    used = set(np.unique(gpu.device[np.isin(gpu.kind, (Kind.COMPUTE, Kind.GRAPH))]).tolist()) - {ABSENT}
    if database.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        query = "SELECT cudaId, CAST(gpuId AS INTEGER) FROM TARGET_INFO_CUDA_DEVICE WHERE pid = ?"
        rows = database.connection.execute(query, (process & _PID_MASK,)).fetchall()
        machine: dict[int, int] = dict(rows)
        return {machine.get(device, device) for device in used}
    return used
