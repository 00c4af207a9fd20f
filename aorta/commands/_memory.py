"""What the C library keeps of freed memory."""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD = -3
"""Of glibc's `malloc.h`."""
_LARGE = 1 << 20


def large_arrays_go_back() -> None:
    """Let arrays of 1 MiB and more go back to the system as soon as they are freed, for the whole process.

    glibc takes the size of what it freed last, up to 32 MiB, for the smallest that it does this with; of an
    analysis that makes many such columns, one after another, it then keeps hundreds of MiB. Other C libraries
    have no such threshold.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
