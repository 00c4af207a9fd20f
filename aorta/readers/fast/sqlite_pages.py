"""Reads integer columns out of the pages of an SQLite file, thousands of rows at a time.

SQLite hands out one value after the other, and exports hold millions. Each row lies in a cell of a leaf page
(https://www.sqlite.org/fileformat.html, 1.3, 1.6 and 2.1): the length of its payload and its row number as
varints, the length of its header, a serial type for each column, then the values, big-endian, one behind the
other. Those of numbers, a byte each, are taken eight at a time as the bytes of a 64-bit word; so are the
sizes that they stand for, and the sums of these: where the values end. A text between them is stepped over.
Columns behind the last wanted one may hold anything.

What shows another layout or damage is looked for, and then there is no result: SQLite has to say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Column
from aorta.artefacts.files import open_regular
from aorta.readers.memory import keep_what_is_freed
from aorta.readers.parallel import usable_cores

T = TypeVar("T")

_LEAF, _INTERIOR = 13, 5
_DEEPEST = 20
_BLOCK_BYTES = 1 << 20
"""Bytes of leaf pages decoded at a time: their columns stay in a core's cache."""
_WORTH_THREADS, _MOST_THREADS = 8, 4
"""Fewest blocks for which threads help, and the number of threads that help before they wait for the
interpreter.
"""
_WIDEST = 126
"""Columns of a header whose length is a varint of one byte, if they are numbers."""
_SLACK = 1200
"""Bytes behind a block: no cell's varints, header and numbers reach farther."""

_ONES = np.uint64(0x0101010101010101)
_NULL, _FLOAT, _BLOB = 0, 7, 12
"""Serial types; from 12 on, of a blob or text of half as many bytes as the type is above it."""
_UTF8 = 1
_CONSTANTS = np.array([ABSENT, *[0] * 8, 1], dtype=np.int64)
"""The number that a serial type without bytes stands for: NULL, 0 and 1."""

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


class _OtherLayoutError(Exception):
    """Not all rows begin with numbers and lie within a page, or the file is damaged."""


@dataclass(frozen=True, slots=True)
class _File:
    """An open file and its layout."""

    descriptor: int
    size: int
    """Bytes of a page, of which the first `usable` hold content."""
    usable: int
    pages: int
    utf8: bool
    """True if its texts are UTF-8."""

    def read(self, pages: Column) -> Bytes:
        """Copies of pages, counted from 0, one behind the other, with zeros behind them."""
        _expect(pages.size > 0 and pages.min() > 0 and pages.max() < self.pages)
        block = np.empty(len(pages) * self.size + _SLACK, dtype=np.uint8)
        block[-_SLACK:] = 0
        ends = [*(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        first = 0
        for end in ends:
            wanted = block.data[first * self.size : end * self.size]
            _expect(os.preadv(self.descriptor, [wanted], int(pages[first]) * self.size) == len(wanted))
            first = end
        return block


def integer_blocks(
    path: Path, root: int, wanted: Sequence[int], each: Callable[[Column], T]
) -> list[T] | None:
    """Returns what `each` makes of some columns of a table, a few thousand rows at a time, in row order.

    Args:
        path: an SQLite file that is not being written.
        root: the table's root page, counted from 1.
        wanted: numbers of columns, at least one; an alias of the row number is stored as NULL.
        each: called with (columns, rows), NULL is ABSENT; several threads call it at a time.

    Returns:
        None if the columns and those before them are not numbers and NULL in all rows, or a row is larger
        than a page.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as stream:
        file = _opened(stream, wanted)
        try:
            return None if file is None else _side_by_side(file, _blocks(file, root), wanted, each)
        except _OtherLayoutError:
            return None


def rows_with_text(
    path: Path, root: int, wanted: Sequence[int], text: int
) -> tuple[list[Column], Column, list[bytes]] | None:
    """Columns of numbers and one of texts, in row order.

    Args:
        path: as for `integer_blocks`.
        root: as there.
        wanted: numbers of the columns of numbers.
        text: number of the column of texts.

    Returns:
        The numbers; which text each row has, NULL is ABSENT; the texts, UTF-8, each once.
        None as for `integer_blocks`, and for texts of another encoding or of more than 8 kB.

    Raises:
        OSError: the file cannot be read.
    """
    parts = []
    texts = _Numbered()
    with open_regular(path) as stream:
        file = _opened(stream, [*wanted, text])
        if file is None or not file.utf8:
            return None
        try:
            for leaves in _blocks(file, root):
                found, places, block = _decode(file, leaves, wanted, text)
                parts.append(np.concatenate((found, _numbered(block, *places, texts)[None])))
        except _OtherLayoutError:
            return None
    *numbers, which = np.concatenate(parts, axis=1)
    return numbers, which, list(texts)


class _Numbered(dict[bytes, int]):
    """Texts, numbered as they come."""

    def __missing__(self, text: bytes) -> int:
        self[text] = number = len(self)
        return number


def _numbered(block: Bytes, begin: Column, size: Column, texts: _Numbered) -> Column:
    """The number of the text of each row; NULL is ABSENT."""
    there = size != ABSENT
    begin, end = begin[there], (begin + size)[there]
    content = block.tobytes()
    found = [texts[content[a:b]] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    number: Column = np.full(len(size), ABSENT)
    number[there] = found
    return number


def _opened(stream: BinaryIO, wanted: Sequence[int]) -> _File | None:
    """The layout that a file's header tells; None where columns or file are none that are read here."""
    header = stream.read(100)
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    # Bytes of words are counted from the lowest.
    if sys.byteorder != "little" or max(wanted) >= _WIDEST or len(header) < 100 or size < 512:
        return None
    pages = os.fstat(stream.fileno()).st_size // size
    utf8 = int.from_bytes(header[56:60], "big") == _UTF8
    return _File(stream.fileno(), size, size - header[20], pages, utf8)


def _blocks(file: _File, root: int) -> list[Column]:
    """The leaf pages of a table, as many at a time as are decoded at once."""
    keep_what_is_freed()
    leaves = _leaves(file, root)
    step = max(1, _BLOCK_BYTES // file.size)
    return [leaves[first : first + step] for first in range(0, len(leaves), step)]


def _side_by_side(
    file: _File, blocks: Sequence[Column], wanted: Sequence[int], each: Callable[[Column], T]
) -> list[T]:
    """Returns what `each` makes of each block; numpy lets other threads run meanwhile."""

    def decode(leaves: Column) -> T:
        return each(_decode(file, leaves, wanted)[0])

    if len(blocks) < _WORTH_THREADS:
        return [decode(block) for block in blocks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(usable_cores(), _MOST_THREADS)) as pool:
        return list(pool.map(decode, blocks))


def _expect(holds: bool | np.bool_) -> None:
    if not holds:
        raise _OtherLayoutError


def _leaves(file: _File, root: int) -> Column:
    """The leaf pages of a table in row order, counted from 0; what they are is seen when they are decoded."""
    level = np.array([root - 1], dtype=np.int64)
    for _ in range(_DEEPEST):
        if file.read(level[:1])[0] == _LEAF:
            return level
        _expect(level.size <= file.pages)
        pages = file.read(level)[:-_SLACK].reshape(-1, file.size)
        _expect((pages[:, 0] == _INTERIOR).all())
        level = np.concatenate([_children(page) for page in pages]) - 1
    raise _OtherLayoutError


def _children(page: Bytes) -> Column:
    """The pages below an interior page, counted from 1."""
    count = int.from_bytes(page[3:5].tobytes(), "big")
    _expect(12 + 2 * count <= len(page))
    cells = page[12 : 12 + 2 * count].view(">u2").astype(np.int64)
    _expect((cells <= len(page) - 4).all())
    places = np.concatenate((cells, [8]))  # the last child stands in the page's own header
    children: Column = page[places[:, None] + np.arange(4)].view(">u4").astype(np.int64)
    return children.reshape(-1)


def _decode(
    file: _File, leaves: Column, wanted: Sequence[int], text: int | None = None
) -> tuple[Column, tuple[Column, Column], Bytes]:
    """The rows of some leaf pages: the wanted columns, (columns, rows), where each row's text begins and its
    bytes (NULL: ABSENT), and the pages in which it is.
    """
    block = file.read(leaves)
    cell, end_of_page = _cells(file, block)
    payload, cell = _length(block, cell)
    header = _behind_varint(block, cell)
    length = block[header].astype(np.int64)
    _expect((length < 128).all())
    # An unaligned word at every byte. Of serial types, the first must be the lowest byte.
    words: Words = np.ndarray((len(block) - 7,), dtype="<u8", buffer=block.data, strides=(1,))
    kinds, place = header + 1, header + length
    found = np.empty((len(wanted), len(cell)), dtype=np.int64)
    first, places = 0, (place, place)
    if text is not None:
        place = _numbers(words, kinds, place, range(text), wanted=wanted, found=found)
        kind, kinds = _length(block, kinds + text)
        _expect(((kind >= _BLOB) | (kind == _NULL)).all())
        size = np.where(kind == _NULL, ABSENT, (kind - _BLOB) >> 1)
        first, places = text + 1, (place, size)
        place = place + np.maximum(size, 0)
        _expect((place <= end_of_page).all())
    rest = range(first, max([first, *(column + 1 for column in wanted)]))
    place = _numbers(words, kinds, place, rest, wanted=wanted, found=found)
    end = header + payload
    _expect((kinds + len(rest) <= header + length).all())
    _expect((place <= end).all() and (end <= end_of_page).all())
    _expect((payload <= file.usable - 35).all())  # of a longer one, a part lies elsewhere
    return found, places, block


def _numbers(
    words: Words, kinds: Column, place: Column, columns: range, *, wanted: Sequence[int], found: Column
) -> Column:
    """Put those of `columns`, all numbers, that are wanted into `found`; the place behind the last one.

    Args:
        words: the word at every byte of a block.
        kinds: where the serial type of each row's first of them stands.
        place: where its value begins.
        columns: numbers of columns that follow one another.
        wanted: as for `integer_blocks`.
        found: (wanted, rows), written to.
    """
    for first in columns[::8]:
        types = words[kinds + (first - columns.start)]
        if columns.stop - first < 8:
            types &= np.uint64((1 << 8 * (columns.stop - first)) - 1)
        sizes = _sizes(types)
        sums = _bytes(sizes * _ONES)
        each_kind, lengths = _bytes(types), _bytes(sizes)
        for row, column in enumerate(wanted):
            if column in columns and first <= column < first + 8:
                at = column - first
                found[row] = _values(words, place + sums[:, at], each_kind[:, at], lengths[:, at])
        place = place + sums[:, 7]
    return place


def _cells(file: _File, block: Bytes) -> tuple[Column, Column]:
    """Returns where each cell of a block begins, and where what is usable of its page ends."""
    pages = block[:-_SLACK].reshape(-1, file.size)
    _expect((pages[:, 0] == _LEAF).all())
    counts = pages[:, 3].astype(np.int64) << 8 | pages[:, 4]
    most = int(counts.max())
    _expect(8 + 2 * most <= file.usable)
    pointers = np.ascontiguousarray(pages[:, 8 : 8 + 2 * most]).view(">u2").astype(np.int64)
    here = np.arange(most) < counts[:, None]
    starts = np.arange(len(pages), dtype=np.int64) * file.size
    cells = pointers[here]
    _expect((cells >= 8).all() and (cells < file.usable).all())
    return cells + np.repeat(starts, counts), np.repeat(starts + file.usable, counts)


def _length(block: Bytes, at: Column) -> tuple[Column, Column]:
    """A varint of one or two bytes (rows of 16 kB and more are none of numbers), and the place behind it."""
    high = block[at].astype(np.int64)
    two = high >= 128
    if not two.any():
        return high, at + 1
    low = block[at + 1]
    _expect((low[two] < 128).all())
    return np.where(two, (high & 127) << 7 | low, high), at + 1 + two


def _behind_varint(block: Bytes, at: Column) -> Column:
    """The place behind a varint: all bytes but its last have the high bit, and a ninth is its last."""
    more = block[at] >= 128
    for _ in range(8):
        if not more.any():
            break
        at = at + more
        more &= block[at] >= 128
    return at + 1


def _sizes(types: Words) -> Words:
    """The size of each serial type: 0 to 4 are their own, 5 is 6, 6 and 7 are 8, 8 and 9 have no bytes."""
    _expect(not (types & np.uint64(0xF0F0F0F0F0F0F0F0)).any())

    def at_least(number: int) -> Words:
        return (types + np.uint64(128 - number) * _ONES) >> np.uint64(7) & _ONES

    _expect(not at_least(10).any())
    sizes = types + at_least(5)
    sizes += at_least(6)
    sizes -= at_least(7)
    sizes &= ~(at_least(8) * np.uint64(0xFF))
    return sizes


def _bytes(words: Words) -> Bytes:
    """The bytes of each word, (words, 8), its lowest first."""
    return words.view(np.uint8).reshape(-1, 8)


def _values(words: Words, end: Column, types: Bytes, sizes: Bytes) -> Column:
    """The numbers of `sizes` bytes that end at `end`."""
    bare = sizes == 0
    _expect(not (types == _FLOAT).any())
    numbers: Column = words[end - 8].byteswap(inplace=True).view(np.int64)
    spare = np.uint8(64) - np.uint8(8) * sizes
    numbers <<= spare
    numbers >>= spare
    if bare.any():
        numbers[bare] = _CONSTANTS[types[bare]]
    return numbers
