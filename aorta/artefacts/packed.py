"""Columns of integers inside of JSON: differences of neighbours, deflated."""

from __future__ import annotations

import zlib

import numpy as np
from isal import isal_zlib

from aorta.artefacts.events import Column
from aorta.artefacts.records import Record
from aorta.errors import ArtefactError
from aorta.intervals import Intervals

_MAX_NUMBERS = 1 << 28
"""A packed column that claims more is no column."""


_LEVEL = 1
"""Compression level of Intel's library: a sixth of the time of zlib at its level 2, for as many bytes."""


class Packed(Record, frozen=True, kw_only=True):
    """A column of int64: differences of neighbours, little endian, deflated; base64 in JSON."""

    count: int
    data: bytes


def pack(column: Column) -> Packed:
    """A column, or intervals of shape (n, 2) row by row."""
    flat = np.ascontiguousarray(column, dtype="<i8").reshape(-1)
    steps = np.diff(flat, prepend=np.zeros(1, dtype="<i8"))
    return Packed(count=len(flat), data=isal_zlib.compress(steps.tobytes(), _LEVEL))


def unpack(packed: Packed) -> Column:
    """The column of `pack`.

    Raises:
        ArtefactError: it does not hold what it says.
    """
    size = packed.count * 8
    if not 0 <= packed.count <= _MAX_NUMBERS:
        raise ArtefactError(f"a packed column claims {packed.count} numbers")
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed.data, size + 1)
    except zlib.error as error:
        raise ArtefactError(f"a packed column is damaged ({error})") from error
    if len(text) != size:
        raise ArtefactError(f"a packed column of {packed.count} numbers contains {len(text)} bytes")
    return np.cumsum(np.frombuffer(text, dtype="<i8"), dtype=np.int64)


def unpack_intervals(packed: Packed) -> Intervals:
    """Intervals of shape (n, 2).

    Raises:
        ArtefactError: as `unpack`, or an odd number of ends.
    """
    flat = unpack(packed)
    if len(flat) % 2:
        raise ArtefactError(f"packed intervals have {len(flat)} ends")
    return flat.reshape(-1, 2)
