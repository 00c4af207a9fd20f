"""Cuts a Kineto file into its head, chunks of whole events and its tail, in bounded memory.

A chunk is the text of one or more events, without the brackets of the array around them. Nothing here
decodes an event: a cut is made where the text of one event ends and that of the next begins.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from isal import igzip_lib, isal_zlib
from msgspec import Struct

from aorta.artefacts.files import open_regular
from aorta.errors import ArtefactError

BLOCK = 256 << 10
"""Bytes read or decoded at a time: few enough for the processor's cache, a third faster to decode."""
CHUNK = 4 << 20
"""Bytes whose events are looked at together: enough that this takes longer than to begin it."""

AHEAD = 2048
"""Bytes that follow each chunk, so that what looks at all events of it at once may look beyond it."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[')
_CUT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:)')
_UNCUT_LIMIT = 8 << 20
"""Text without a place to cut that is not a trace any more."""
HEADER_LIMIT = 64 << 20
"""Bytes before the array of events at most: the process groups of many ranks take some MiB."""
_KEY = 64
_LONGEST_CUT = 4 << 10
"""Place where a cut may begin before the text that ends it: white space."""
_NEAR_END = 16 << 10
_SEARCH = 1 << 20
"""Bytes in which an event must begin for a file to be cut."""


class GzipDamageError(Exception):
    """The compressed stream ends early or is damaged; what came before it is good."""


def is_gzip(path: Path) -> bool:
    """True if the file begins as a gzip stream does, whatever its name."""
    with open_regular(path) as stream:
        return stream.read(2) == b"\x1f\x8b"


def plain_blocks(stream: BinaryIO, length: int | None = None, size: int = BLOCK) -> Iterator[bytes]:
    """The next `length` bytes (None: all) of a stream, a block at a time; without a byte order mark."""
    left = length
    if stream.tell() == 0:
        begin = stream.read(len(BOM_UTF8))
        if begin != BOM_UTF8:
            stream.seek(0)
        elif left is not None:
            left -= len(begin)
    while block := stream.read(size if left is None else min(size, left)):
        yield block
        left = None if left is None else left - len(block)


def gzip_blocks(stream: BinaryIO, size: int = BLOCK) -> Iterator[bytes]:
    """The plain bytes of a gzip file of one or more members, in blocks of at most `size`.

    Raises:
        GzipDamageError: after the last good block of a truncated or damaged stream.
    """
    inflate = isal_zlib.decompressobj(wbits=31)
    pending, first = stream.read(size), True
    while pending:
        try:
            block = inflate.decompress(pending, size)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub is no exception
            raise GzipDamageError(f"damaged gzip data ({error})") from error
        if block:
            yield block.removeprefix(BOM_UTF8) if first else block
            first = False
        if not inflate.eof:
            pending = inflate.unconsumed_tail or stream.read(size)
            continue
        # Another member may follow; zero bytes at the end are padding.
        pending = inflate.unused_data.lstrip(b"\0") or stream.read(size).lstrip(b"\0")
        if not pending:
            return
        inflate = isal_zlib.decompressobj(wbits=31)
    raise GzipDamageError("the gzip stream ends early")


class PlainText:
    """The next `length` bytes (None: all) of a stream, as `EventText` asks for them."""

    def __init__(self, stream: BinaryIO, length: int | None = None) -> None:
        self._stream = stream
        self._left = length

    def behind(self, kept: bytes) -> bytes:
        """Returns what was kept of the text that was read last, and what follows it.

        The same where nothing does.
        """
        # To read a few bytes again is faster than to put two texts together.
        again = len(kept) if len(kept) < CHUNK // 2 else 0
        size = CHUNK if self._left is None else min(CHUNK, again + self._left)
        self._stream.seek(-again, os.SEEK_CUR)
        text = self._stream.read(size)
        if self._left is not None:
            self._left -= len(text) - again
        return text if again == len(kept) else kept + text


class GzipText:
    """The text of a gzip stream, as `EventText` asks for it; a thread unpacks the next of it meanwhile."""

    def __init__(self, stream: BinaryIO) -> None:
        self._blocks = gzip_blocks(stream, CHUNK)
        self._unpacked: bytes | Exception = b""
        self._begin()

    def behind(self, kept: bytes) -> bytes:
        """Returns the kept end of the text that was read last with what follows it.

        Raises:
            GzipDamageError: after the last good text of a truncated or damaged stream.
            OSError: it cannot be read.
        """
        self.close()
        block, self._unpacked = self._unpacked, b""
        if isinstance(block, Exception):
            raise block
        if block:
            self._begin()
        return kept + block

    def close(self) -> None:
        """Wait for the thread: the stream may be closed then."""
        self._thread.join()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._unpack, daemon=True)
        self._thread.start()

    def _unpack(self) -> None:
        try:
            self._unpacked = next(self._blocks, b"")
        except Exception as error:  # raised where the text is asked for
            self._unpacked = error


_PIECE = 2 << 20
"""Bytes of an unpacked text that are read at a time: the first ones take new memory, page by page."""


class UnpackedText:
    """A text that is unpacked already, as `GzipText` gives it, but for its smaller pieces."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def behind(self, kept: bytes) -> bytes:
        """Returns the kept end of the text that was read last with what follows it."""
        begin, self._at = self._at - len(kept), min(self._at + _PIECE, len(self._text))
        return self._text[begin : self._at]


Source: TypeAlias = PlainText | GzipText | UnpackedText


class EventText(Struct):
    """Iterates over the chunks of a file or of a byte range of it: texts, and where their whole events end.

    At least `AHEAD` bytes follow there.
    Afterwards `rest` holds what follows the last cut: the text of the last events and, at the end of a
    file, the end of the array and the keys behind it.
    """

    source: Source
    buffer: bytes = b""
    """Text of the array that was read before."""
    rest: bytes = b""
    fault: str | None = None
    """Why the source ended before its end."""

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """The chunks in order."""
        text = self.buffer
        searched = 0
        while True:
            cut = last_cut(text, max(searched - _LONGEST_CUT, 0), len(text) - AHEAD)
            if cut is not None:
                yield text, cut.start() + 1
                text = text[cut.end() :]
            elif len(text) > _UNCUT_LIMIT:
                self.fault = f"no event begins within {_UNCUT_LIMIT >> 20} MiB of text"
                return
            # No cut is in what is left: to look there again for each block would take quadratic time.
            before, searched = len(text), max(len(text) - AHEAD, 0)
            try:
                text = self.source.behind(text)
            except GzipDamageError as damage:
                self.fault = str(damage)
            if len(text) <= before:
                self.rest = text
                return


def last_cut(buffer: bytes, first: int, end: int) -> re.Match[bytes] | None:
    """The last place from `first` on and before `end` where one event ends and another begins."""
    span = _NEAR_END
    while True:
        start = max(end - span, first)
        found = list(_CUT.finditer(buffer, start, max(end, start)))
        if found or start == first:
            return found[-1] if found else None
        span *= 16


def open_array(path: Path, source: Source) -> tuple[bytes, bytes]:
    """The text before the array of events, and what has been read of the array.

    Raises:
        ArtefactError: the file holds no `traceEvents` array.
    """
    head = b""
    reason = "no traceEvents array"
    try:
        while len(text := source.behind(head)) > len(head):
            # What was searched is not searched again, but for a key that the last text ended in.
            match = _ARRAY.search(text, max(len(head) - _KEY, 0))
            head = text
            if match is not None:
                return head[: match.start()], head[match.end() :]
            if len(head) > HEADER_LIMIT:
                break
    except GzipDamageError as damage:
        reason = f"{damage} before any event"
    raise ArtefactError(
        f"{path}: {reason if head or reason[0] != 'n' else 'the file is empty'}",
        hint="expected a Kineto (torch profiler) trace: JSON with the key traceEvents",
    )


def ranges(path: Path, parts: int) -> list[tuple[int, int | None]] | None:
    """Byte ranges (start, length) of a plain file, about equally long, cut between events.

    The first includes the head of the file and the last (length None) its tail. None where the file cannot
    be cut safely: what lies behind the array may look like events.
    """
    size = path.stat().st_size
    starts = [0]
    with open_regular(path) as stream:
        stream.seek(max(size - _SEARCH, 0))
        end = stream.read()
        if last_cut(end, 0, len(end)) is None:
            return None
        for part in range(1, parts):
            stream.seek(size * part // parts)
            cut = _CUT.search(stream.read(_SEARCH))
            if cut is None:
                return None
            starts.append(size * part // parts + cut.end())
    ends = itertools.pairwise(starts)
    return [*((start, end - start) for start, end in ends), (starts[-1], None)]


def smaller(text: bytes) -> Iterator[tuple[bytes, bool]]:
    """A chunk in chunks of about a block, and whether each is the last."""
    start = 0
    while (cut := _CUT.search(text, start + BLOCK)) is not None:
        yield text[start : cut.start() + 1], False
        start = cut.end()
    yield text[start:], True
