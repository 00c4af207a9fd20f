"""Many files of a run, read by as many processes as there are cores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")

_WORTH_IT = 32 << 20
"""Bytes; less is read sooner than processes start."""
_AT_ONCE = 16
"""Files a task; a few tasks are under way, so that few results wait in memory."""


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
        waiting: deque[Future[list[T]]] = deque()
        for first in range(0, len(files), _AT_ONCE):
            waiting.append(pool.submit(_several, read, files[first : first + _AT_ONCE]))
            if len(waiting) > 2 * usable_cores():
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _several(read: Callable[[tuple[K, Path]], T], files: Sequence[tuple[K, Path]]) -> list[T]:
    return [read(item) for item in files]


def usable_cores() -> int:
    """CPUs that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
