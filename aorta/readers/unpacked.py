"""Unpacks archives and packed files for reading; plain files and gzip traces stay where they are."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import lzma
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import is_file, open_regular, walk

_BLOCK = 1 << 20
_MOST_BYTES = 64 << 30
_SPARE_BYTES = 1 << 30
_MOST_MEMBERS = 20_000
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bz2"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!", "rar"),
)
_OPENED = {"zip": (".zip",), "7z": (".7z",), "rar": (".rar",)}
"""Suffixes of archives that are unpacked below a folder: files of other names may be zip archives, too."""


class PackedError(Exception):
    """A packed file cannot be unpacked; the text says why."""


_FAILURES = (PackedError, OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)


@dataclass(slots=True)
class Unpacked:
    """Files to read."""

    paths: list[Path] = field(default_factory=list)
    """As given, with what was unpacked in the place of packed files."""
    names: dict[Path, str] = field(default_factory=dict)
    """What unpacked files and folders are called to users, by their temporary place."""
    problems: list[Problem] = field(default_factory=list)

    def named(self, text: str) -> str:
        """Returns a text with the names of packed files instead of temporary places."""
        for place, name in self.names.items():
            text = text.replace(str(place), name)
        return text


@contextlib.contextmanager
def unpacked(paths: Iterable[Path]) -> Iterator[Unpacked]:
    """Gives the files among paths and below folders, unpacked while the context is open."""
    found = Unpacked()
    with contextlib.ExitStack() as stack:
        folder: Path | None = None
        for path in paths:
            packed = _packed_below(path)
            if packed:
                folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aorta-")))
            found.paths += [path] if not packed.keys() >= {path} else []
            for number, (file, kind) in enumerate(packed.items(), start=len(found.names)):
                assert folder is not None
                target = folder / str(number) / file.stem
                try:
                    _unpack(file, kind, target)
                except _FAILURES as error:
                    found.problems.append(
                        Problem(file=str(file), reason=f"{file}: {error or 'it ends early'}")
                    )
                    continue
                found.names[target] = str(file)
                found.paths.append(target)
        yield found


def _packed_below(path: Path) -> Mapping[Path, str]:
    """The packed files at or below a path, with the kind of each."""
    if is_file(path):
        kind = _kind(path)
        return {} if kind is None else {path: kind}
    found = {}
    for file in sorted(walk(path)):
        kind = _kind(file)
        if kind is not None and file.suffix in _OPENED.get(kind, (file.suffix,)):
            found[file] = kind
    return found


def _kind(path: Path) -> str | None:
    try:
        with open_regular(path) as stream:
            head = stream.read(512)
    except OSError:
        return None  # reading it says why
    if head[257:262] == b"ustar":
        return "tar"
    if head.startswith(b"\x1f\x8b"):
        return (
            "tar" if path.name.endswith((".tar.gz", ".tgz")) else "gzip" if _is_packed_table(path) else None
        )
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)


def _is_packed_table(path: Path) -> bool:
    return path.name.endswith((".csv.gz", ".txt.gz", ".log.gz"))


def _unpack(path: Path, kind: str, target: Path) -> None:
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
    raise PackedError(f"a {kind} archive is not read; unpack it first")


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
