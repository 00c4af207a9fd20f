"""Finds how the C library and Python treat the memory that an analysis uses."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

_BYTES = 31 << 20


_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Import numpy without the threads of its linear algebra, which no analysis uses.

    OpenBLAS starts one thread per core and lets each spin for a while. That takes a good part of the time of
    a small trace, and a login node may refuse so many threads. Programs that this process starts later see
    the environment as it was.
    """
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def keep_what_is_freed() -> None:
    """Have the memory that one block of a file took serve the next one.

    glibc gives freed memory back to the system, which clears it page by page for the next block; that takes
    up to a quarter of the time of reading. After so many bytes, never touched, were freed at once, it keeps
    twice as many of those freed later (mallopt(3), M_MMAP_THRESHOLD). Elsewhere this does nothing.
    """
    import numpy as np

    np.empty(_BYTES, dtype=np.uint8)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Runs a block without Python's garbage collector.

    An analysis makes many objects and few cycles; to look for cycles takes a tenth of its time. Afterwards
    these objects count as old: the next look is not at all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.unfreeze()
            gc.enable()
