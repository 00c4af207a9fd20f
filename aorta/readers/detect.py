"""Says what a file is by what is in it; names and suffixes can be anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias

from aorta.artefacts.lines import cells_of
from aorta.errors import ArtefactError
from aorta.readers.kineto_stream import GzipDamageError, gzip_blocks, is_gzip, plain_blocks

Format: TypeAlias = Literal["kineto", "nsys", "nsys-report", "rocprof-csv", "rocprof-json", "rocpd"]

_LOOK = 1 << 20
_SQLITE = b"SQLite format 3\0"
_KINETO = re.compile(rb'"traceEvents"\s*:|^\s*\[\s*\{[^{}]*"ph"\s*:')
_ROCPROF = re.compile(rb'"rocprofiler-sdk-tool"\s*:')
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
        if _ROCPROF.search(head):
            return "rocprof-json"
        return "kineto" if _KINETO.search(head) else None
    return "rocprof-csv" if _is_csv(head) else None


def _head(path: Path) -> bytes:
    """The beginning of what is in a file, unpacked."""
    with path.open("rb") as stream:
        try:
            blocks = gzip_blocks(stream, _LOOK) if is_gzip(path) else plain_blocks(stream, _LOOK)
            return next(blocks, b"")
        except GzipDamageError:
            return b""


def _database(path: Path) -> Format | None:
    # To import this, and what a CSV needs, takes a good part of the time that a small Kineto trace does.
    from aorta.readers.trace_sqlite import open_database

    try:
        with open_database(path) as database:
            if any(name == "kernels" or name.startswith("rocpd_") for name in database.tables):
                return "rocpd"
    except ArtefactError:
        return "nsys" if path.suffix in (".sqlite", ".gz") else None
    return "nsys"


def _is_csv(head: bytes) -> bool:
    from aorta.readers.rocprof import is_trace_header

    line = head.split(b"\n", 1)[0].decode("utf-8", errors="replace").strip()
    return is_trace_header(cells_of(line) or [])
