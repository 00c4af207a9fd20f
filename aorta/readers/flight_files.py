"""Finds dumps of torch's flight recorder by their content; `flight` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aorta.artefacts.files import is_file, is_folder, open_regular, walk
from aorta.errors import ArtefactError
from aorta.readers.detect import KINETO_MARKS

_MARKS = (b"pg_config", b"entries", b"pg_status", b"nccl_comm_state", b"collective_seq_id", b"profiling_name")
"""Names of which a dump has two in its first bytes, in whatever order it was written."""
_LOOK = 1 << 16


def is_recording(head: bytes) -> bool:
    """True if a file that begins with `head` may be a dump of the flight recorder."""
    pickled = head[:1] == b"\x80" and head[1:2] <= b"\x05"
    text = head.lstrip()[:1] == b"{" and not any(mark in head for mark in KINETO_MARKS)
    return (pickled or text) and sum(mark in head for mark in _MARKS) >= 2


def find(paths: Iterable[Path]) -> list[Path]:
    """The files that may be dumps by their content, among `paths` and below folders."""
    below: dict[Path, None] = {}
    for path in paths:
        below.update(dict.fromkeys(sorted(walk(path)) if is_folder(path) else [path]))
    return [path for path in below if is_file(path) and is_recording(_head(path))]


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            return stream.read(_LOOK)
    except (OSError, ArtefactError):
        return b""
