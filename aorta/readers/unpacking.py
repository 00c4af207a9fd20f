"""Unpacks one archive or packed file, within bounds of size and number."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

_BLOCK = 1 << 20
_MOST_BYTES = 64 << 30
_SPARE_BYTES = 1 << 30
_MOST_MEMBERS = 20_000


class PackedError(Exception):
    """A packed file cannot be unpacked; the text says why."""


FAILURES = (PackedError, OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)


def unpack(path: Path, kind: str, target: Path) -> None:
    """Unpacks a file to `target`, or an archive into the folder `target`.

    Raises:
        PackedError: it needs another program, or is too large.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    left = min(_MOST_BYTES, shutil.disk_usage(target.parent).free - _SPARE_BYTES)
    if kind == "zip":
        with zipfile.ZipFile(path) as archive:
            members = [entry for entry in archive.infolist() if not entry.is_dir()]
            if any(entry.flag_bits & 1 for entry in members):
                raise PackedError("an archive with a password; unpack it first")
            _extract(((entry.filename, partial(archive.open, entry)) for entry in members), target, left)
    elif kind == "tar" or path.name.endswith((".tar.xz", ".tar.bz2", ".txz")):
        with tarfile.open(path) as archive:
            files = (entry for entry in archive if entry.isfile())
            _extract(((entry.name, partial(archive.extractfile, entry)) for entry in files), target, left)
    else:
        with _opened(path, kind) as source, target.open("wb") as sink:
            _copy(source, sink, left)


def _opened(path: Path, kind: str) -> IO[bytes]:
    if kind == "xz":
        return lzma.open(path)
    if kind == "bz2":
        return bz2.open(path)
    if kind == "gzip":
        return cast(IO[bytes], gzip.open(path))
    if kind == "zstd":
        try:
            opened: IO[bytes] = importlib.import_module("compression.zstd").open(path)
        except ImportError:
            raise PackedError("zstd needs Python 3.14; unpack it first: zstd -d FILE") from None
        return opened
    raise PackedError(f"aorta does not read {kind} archives; unpack it first")


def _extract(members: Iterable[tuple[str, Callable[[], IO[bytes] | None]]], target: Path, left: int) -> None:
    """Writes members below `target`, whatever their names say."""
    target.mkdir()
    for number, (name, opened) in enumerate(members):
        if number >= _MOST_MEMBERS:
            raise PackedError(f"an archive of more than {_MOST_MEMBERS} files; unpack it first")
        parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("/", "..")]
        place = target.joinpath(*parts) if parts else target / str(number)
        place.parent.mkdir(parents=True, exist_ok=True)
        source = opened()
        if source is not None:
            with source, place.open("wb") as sink:
                left -= _copy(source, sink, left)


def _copy(source: IO[bytes], sink: IO[bytes], left: int) -> int:
    """Copies a stream and returns its length.

    Raises:
        PackedError: it is longer than `left`.
    """
    count = 0
    while block := source.read(_BLOCK):
        count += len(block)
        if count > left:
            raise PackedError(f"more than {left >> 30} GiB when unpacked; unpack it first")
        sink.write(block)
    return count
