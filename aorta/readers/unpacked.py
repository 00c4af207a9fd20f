"""Unpacks archives and packed files for reading; plain files and gzip traces stay where they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import is_file, open_regular, walk
from aorta.errors import ArtefactError

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


class Unpacked(Struct):
    """Files to read."""

    paths: list[Path] = field(default_factory=list)
    """Paths as given, with the unpacked content in the place of packed files."""
    names: dict[Path, str] = field(default_factory=dict)
    """Names of unpacked files and folders that users see, by their temporary place."""
    problems: list[Problem] = field(default_factory=list)
    opened: set[Path] = field(default_factory=set)
    """Packed files that something was unpacked from."""

    def give_up(self, paths: Iterable[Path], error: ArtefactError) -> None:
        """Leaves files out of what is read, with the reason."""
        given = list(paths)
        self.paths = [path for path in self.paths if path not in given]
        self.problems += [Problem(file=str(path), reason=error.message) for path in given]

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
                # What opens archives takes as long to import as a small trace to read.
                import tempfile

                from aorta.readers.unpacking import FAILURES, unpack

                folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aorta-")))
            found.paths += [path] if not packed.keys() >= {path} else []
            for number, (file, kind) in enumerate(packed.items(), start=len(found.names)):
                assert folder is not None
                target = folder / str(number) / file.stem
                try:
                    unpack(file, kind, target)
                except FAILURES as error:
                    found.problems.append(
                        Problem(file=str(file), reason=f"{file}: {error or 'it ends early'}")
                    )
                    continue
                found.opened.add(file)
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
