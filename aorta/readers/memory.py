"""How the C library treats the memory of large arrays."""

from __future__ import annotations

import numpy as np

_BYTES = 31 << 20


def keep_what_is_freed() -> None:
    """Have the memory that one block of a file took serve the next one.

    glibc gives freed memory back to the system, which clears it page by page for the next block; that takes
    up to a quarter of the time of reading. After so many bytes, never touched, were freed at once, it keeps
    twice as many of those freed later (mallopt(3), M_MMAP_THRESHOLD). Elsewhere this does nothing.
    """
    np.empty(_BYTES, dtype=np.uint8)
