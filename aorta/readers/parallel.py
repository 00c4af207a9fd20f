"""Many files of a run, read by as many processes as there are cores."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from aorta.artefacts.files import size_of
from aorta.readers.copies import Copy, Turns, taken

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
K = TypeVar("K")

_WORTH_IT = 32 << 20
"""Bytes of records or samples; less is read sooner than processes start."""
_WORTH_A_FORK, _WORTH_A_START = 16 << 20, 96 << 20
"""Bytes of a trace; less is read sooner than processes of either kind are ready."""
_AT_ONCE = 16
"""Files a task; a few tasks are under way, so that few results wait in memory."""


class Pool:
    """Processes for several readings: from the first one that is worth it to the end of the block."""

    def __init__(self) -> None:
        self._made: ProcessPoolExecutor | None = None

    def __enter__(self) -> Pool:
        return self

    @property
    def processes(self) -> ProcessPoolExecutor:
        """One for each core that this process may use."""
        if self._made is None:
            self._made = processes(usable_cores())
        return self._made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            self._made.shutdown(cancel_futures=True)


def side_by_side(
    read: Callable[[tuple[K, Path]], T], files: Sequence[tuple[K, Path]], pool: Pool | None = None
) -> Iterator[T]:
    """Returns what `read` makes of each of `files`, in their order.

    Args:
        read: a function of a module, given a key and a path; it raises nothing.
        files: keys and paths.
        pool: as for `in_batches`.
    """
    yield from in_batches(partial(_several, read), files, pool)


def in_batches(
    read: Callable[[Sequence[tuple[K, Path]]], list[T]],
    files: Sequence[tuple[K, Path]],
    pool: Pool | None = None,
) -> Iterator[T]:
    """Returns what `read` makes of `files`, some neighbours at a time, in their order.

    Args:
        read: a function of a module, given keys and paths; it raises nothing.
        files: keys and paths.
        pool: the processes, where they are worth it. None means some of its own.
    """
    batches = [files[first : first + _AT_ONCE] for first in range(0, len(files), _AT_ONCE)]
    size = sum(size_of(path) for _, path in files)
    if usable_cores() < 2 or len(batches) < 2 or size < _WORTH_IT:
        for batch in batches:
            yield from read(batch)
        return
    with contextlib.nullcontext(pool) if pool is not None else Pool() as owner:
        waiting: deque[Future[list[T]]] = deque()
        for batch in batches:
            waiting.append(owner.processes.submit(read, batch))
            if len(waiting) > 2 * usable_cores():
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _several(read: Callable[[tuple[K, Path]], T], files: Sequence[tuple[K, Path]]) -> list[T]:
    return [read(item) for item in files]


def processes(count: int) -> ProcessPoolExecutor:
    """A pool of `count` processes: copies of this one where that is safe, else new ones.

    A copy has everything imported and is ready at once; a new process takes as long as 50 MB of a trace. A
    process that runs threads must not be copied: the copy has their locks and not the threads.
    """
    # They take longer to import than few small files to read.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(count, mp_context=get_context("fork" if _may_fork() else "spawn"))


def shared_out(
    read: Callable[[K], T],
    items: Sequence[K],
    workers: int,
    meanwhile: Callable[[], object] | None = None,
) -> list[T]:
    """Returns what `read` makes of `items`, in their order, by `workers` processes, of which this is one.

    Args:
        read: a function of a module; it is given an item.
        items: about as long to read each.
        workers: processes, this one included.
        meanwhile: as for `by_copies`; not done where processes are new.
    """
    if _may_fork():
        return by_copies(read, items, workers=workers, meanwhile=meanwhile)
    with processes(workers - 1) as pool:
        # A batch for each process, given out at the start: a pool would hand the first one items that
        # others wait for.
        futures = [pool.submit(_several_of, read, items[place::workers]) for place in range(workers - 1)]
        own = _several_of(read, items[workers - 1 :: workers])
        batches = [*(future.result() for future in futures), own]
    return [batches[place % workers][place // workers] for place in range(len(items))]


def _several_of(read: Callable[[K], T], items: Sequence[K]) -> list[T]:
    return [read(item) for item in items]


def by_copies(
    function: Callable[[K], T],
    items: Sequence[K],
    *,
    workers: int | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> list[T]:
    """`function` of each item, by copies of this process on the cores there are; in turn where none is safe.

    Copies have in memory what they work on: only results are sent. Each process takes the next item when it
    is done with one.

    Args:
        function: is given an item.
        items: in the order of the results.
        workers: processes, this one included. None means one for each usable core.
        meanwhile: done by this process before it takes items.
    """
    count = min(workers or usable_cores(), len(items))
    alone = count < 2 or not _may_fork()
    turns = None if alone else Turns(len(items))
    copies = [] if turns is None else [Copy(function, items, turns) for _ in range(count - 1)]
    try:
        if meanwhile is not None:
            meanwhile()
        if turns is None:
            return [function(item) for item in items]
        done = taken(function, items, turns)
        for copy in copies:
            done.update(copy.results())
    finally:
        for copy in copies:
            copy.close()
        if turns is not None:
            turns.close()
    return [done[place] for place in range(len(items))]


def worth_processes() -> int:
    """The bytes of a trace from which `processes` read it sooner than one process."""
    return _WORTH_A_FORK if _may_fork() else _WORTH_A_START


def _may_fork() -> bool:
    return sys.platform == "linux" and threading.active_count() == 1


def one_each(files: int) -> bool:
    """Returns True if each file is read by one process: there are several, and no fewer than cores."""
    return files >= max(usable_cores(), 2)


def usable_cores() -> int:
    """CPUs that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
