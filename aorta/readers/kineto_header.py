"""Reads the keys of a Kineto file beside its events: the rank, the job, the GPU and the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aorta.artefacts.events import ABSENT, GpuEvents
from aorta.readers.trace_build import file_rank

_EPOCH_US = 10**15
"""A `ts` above this (the year 2001 in µs) counts from the Unix epoch; one below it counts from a start-up."""


def distributed(header: dict[str, Any]) -> dict[str, Any]:
    """Returns what the file says of the job's ranks; empty where it says nothing."""
    info = header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def gpu_name(header: dict[str, Any]) -> str | None:
    """Returns the name of the first GPU; None where the file does not say it."""
    known = header.get("deviceProperties")
    first = known[0] if isinstance(known, list) and known else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) and name else None


def world_size(header: dict[str, Any]) -> int | None:
    """Returns the number of ranks; None where the file does not say it."""
    return _whole(distributed(header).get("world_size"))


def _whole(value: object) -> int | None:
    """Returns a whole number of 0 or more, also as text; else None."""
    try:
        number = int(value) if isinstance(value, (int, str)) else ABSENT
    except ValueError:
        return None
    return number if number >= 0 else None


def rank_of(path: Path, header: dict[str, Any]) -> tuple[int | None, str | None, tuple[str, ...]]:
    """Returns the rank, what it was read from, and what a reader should know about it."""
    stated = _whole(distributed(header).get("rank"))
    named = file_rank(path)
    if stated is None:
        return named, None if named is None else "file name", ()
    if named is not None and named != stated:
        return stated, "distributedInfo", (f"{path.name} is rank {stated} by its content, not {named}",)
    return stated, "distributedInfo", ()


def epoch_of(header: dict[str, Any], gpu: GpuEvents) -> int | None:
    """Returns the time in ns since the Unix epoch that times count from; None where nothing tells."""
    base = _whole(header.get("baseTimeNanoseconds"))
    if base is not None:
        return base
    return 0 if len(gpu) and int(gpu.start_ns[0]) > _EPOCH_US * 1000 else None
