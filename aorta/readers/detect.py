"""Says what a file is by what is in it; names and suffixes can be anything."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from aorta.artefacts.files import open_regular
from aorta.artefacts.lines import cells_of
from aorta.errors import ArtefactError
from aorta.readers.kineto_stream import HEADER_LIMIT, GzipDamageError, gzip_blocks, is_gzip, plain_blocks

Format: TypeAlias = Literal["kineto", "nsys", "nsys-report", "rocprof-csv", "rocprof-json", "rocpd"]

_LOOK = 128 << 10
_KEY = 64
_SQLITE = b"SQLite format 3\0"
_KINETO = re.compile(rb'"traceEvents"\s*:|^\s*\[\s*\{[^{}]*"ph"\s*:')
KINETO_MARKS = (b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"')
"""Keys that tell a Kineto trace from other JSON that names its groups, devices or times."""
_ROCPROF_KEY = b'"rocprofiler-sdk-tool"'
_ROCPROF = re.compile(_ROCPROF_KEY + rb"\s*:")
_OPEN_OBJECT = re.compile(rb"\s*\{(?![^\n]*\}[\r\t ]*\n)")
"""An object that does not end with its first line, as each line of a JSONL file does."""
_JSON = re.compile(rb"\s*[\[{]")


def detect(path: Path) -> Format | None:
    """The format of a trace; None for a file that is none, or that is too damaged to tell.

    Raises:
        ArtefactError: the file cannot be read.
    """
    try:
        head = _head(path)
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    if head.startswith(_SQLITE):
        return _database(path)
    if path.suffix == ".nsys-rep":
        # Its content is NVIDIA's own and not described: the one format that only its name tells.
        return "nsys-report"
    if _JSON.match(head):
        return _json(path, head)
    return "rocprof-csv" if _is_csv(head) else None


def _json(path: Path, head: bytes) -> Format | None:
    """The format of a JSON file: the key that tells may stand behind a long header."""
    kept = b""
    read = 0
    for block in itertools.chain([head], itertools.islice(content(path), 1, None)):
        text = kept + block
        # Bytes are found several times faster than a pattern.
        if _ROCPROF_KEY in text and _ROCPROF.search(text):
            return "rocprof-json"
        if _KINETO.search(text):
            return "kineto"
        kept, read = block[-_KEY:], read + len(block)
        if read > HEADER_LIMIT or not _OPEN_OBJECT.match(head):
            break
    return None


def _head(path: Path) -> bytes:
    """The beginning of what is in a file, unpacked."""
    return next(content(path), b"")


def content(path: Path) -> Iterator[bytes]:
    """Returns what is in a file, unpacked, as far as it is whole."""
    with open_regular(path) as stream:
        try:
            yield from gzip_blocks(stream, _LOOK) if is_gzip(path) else plain_blocks(stream, size=_LOOK)
        except GzipDamageError:
            return


def _database(path: Path) -> Format | None:
    # To import this, and what a CSV needs, takes a good part of the time that a small Kineto trace does.
    from aorta.readers.trace_sqlite import open_database

    try:
        with open_database(path, views=True) as database:
            if any(name == "kernels" or name.startswith("rocpd_") for name in database.tables):
                return "rocpd"
    except ArtefactError:
        return "nsys" if path.suffix in (".sqlite", ".gz") else None
    return "nsys"


def _is_csv(head: bytes) -> bool:
    from aorta.readers.rocprof import is_trace_header

    line = head.split(b"\n", 1)[0].decode("utf-8", errors="replace").strip()
    return is_trace_header(cells_of(line) or [])
