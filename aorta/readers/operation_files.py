"""Finds timelines of operations by their content; `operations` reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from aorta.artefacts.files import is_file, open_regular
from aorta.readers.kineto_stream import GzipDamageError, gzip_blocks

PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""
_LOOK = 1 << 16
_EVENT = re.compile(rb'"args"\s*:\s*\{[^{}]*"(?:mb_id|microbatch)"')


def is_operations(path: Path) -> bool:
    """Returns True if a file holds operations of a mesh, by its content.

    Raises:
        ArtefactError: the file cannot be read.
    """
    try:
        with open_regular(path) as stream:
            head = stream.read(_LOOK)
        if head.startswith(PARQUET):
            return True
        if head.startswith(b"\x1f\x8b"):
            head = _unpacked(path)
    except (OSError, GzipDamageError):
        return False
    if head.lstrip().startswith(b"["):
        return _EVENT.search(head) is not None
    if head.lstrip().startswith(b"{"):
        return False
    # Few folders hold a table of operations.
    from aorta.readers.operation_columns import cells, delimiter, is_table

    first = head.split(b"\n", 1)[0].decode("utf-8-sig", errors="replace").strip()
    return is_table(cells(first, delimiter(first)))


def _unpacked(path: Path) -> bytes:
    head = b""
    with open_regular(path) as stream:
        for block in gzip_blocks(stream, _LOOK):
            head += block
            if len(head) >= _LOOK:
                break
    return head


def find_operations(paths: Sequence[Path]) -> list[Path]:
    """Returns the files of operations among files and the direct contents of folders."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    return [path for path in files if is_file(path) and is_operations(path)]
