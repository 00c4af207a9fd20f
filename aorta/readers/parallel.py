"""Many files of a run, read by as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")

_WORTH_IT = 32 << 20
"""Bytes; less is read sooner than processes start."""
_AT_ONCE = 16
"""Files a task: results wait in memory until they are taken."""


def side_by_side(read: Callable[[tuple[K, Path]], T], files: Sequence[tuple[K, Path]]) -> Iterator[T]:
    """What `read` makes of each of `files`, in their order.

    Args:
        read: a function of a module, given a key and a path; it raises nothing.
        files: keys and paths.
    """
    size = sum(path.stat().st_size for _, path in files if path.exists())
    if usable_cores() < 2 or len(files) < 2 * _AT_ONCE or size < _WORTH_IT:
        yield from map(read, files)
        return
    with ProcessPoolExecutor(usable_cores(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(read, files, chunksize=_AT_ONCE)


def usable_cores() -> int:
    """CPUs that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
