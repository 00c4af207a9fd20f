"""Samples of GPUs and hosts from any CSV files beside traces: the monitors' own, and nvidia-smi's."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import is_folder, open_regular, walk
from aorta.errors import ArtefactError
from aorta.readers.detect import KINETO_MARKS

if TYPE_CHECKING:
    from aorta.artefacts.sample_table import SampleTable


Kind: TypeAlias = Literal["nvidia-smi", "amd-smi", "dmon", "text", "gpu", "cpu"]

LOOK = 4096
"""Bytes of a file that tell what it holds."""
_GZIP = b"\x1f\x8b"
"""Packed tables are unpacked before they are looked at."""


class SampleFile(Struct, frozen=True):
    """One file's samples."""

    path: Path
    kind: Literal["gpu", "cpu"]
    table: SampleTable
    zoneless: bool
    """`wall_ns` was printed as local time of an unknown zone and is taken as if it were UTC."""


def find_samples(paths: Iterable[Path]) -> tuple[tuple[SampleFile, ...], tuple[Problem, ...]]:
    """The sample files among files and below folders, by their first line; others are left out.

    A file that cannot be used is a problem.
    """
    files: dict[Path, None] = {}
    for path in paths:
        below = sorted(walk(path)) if is_folder(path) else [path]
        files.update(dict.fromkeys(below))
    found: list[SampleFile] = []
    problems: list[Problem] = []
    for path in files:
        try:
            kind = _recognised(path)
            if kind is not None:
                from aorta.readers.sample_tables import read_table

                found.append(read_table(path, kind, problems))
        except ArtefactError as error:
            reason = f"{error.message}; {error.hint}" if error.hint else error.message
            problems.append(Problem(file=str(path), reason=f"{path}: {reason}"))
        except OSError as error:
            problems.append(Problem(file=str(path), reason=f"{path}: {error.strerror}"))
    return tuple(item for item in found if len(item.table)), tuple(problems)


def _recognised(path: Path) -> Kind | None:
    """Returns the kind of samples in a file; None for a file that holds none.

    Raises:
        ArtefactError: it holds samples that cannot be read.
    """
    with open_regular(path) as stream:
        data = stream.read(LOOK)
    if data.startswith(_GZIP) or any(mark in data for mark in KINETO_MARKS):
        return None
    # To import what knows every tool takes a good part of the time that a small trace does.
    from aorta.readers.sample_tables import kind_of

    return kind_of(decoded(data))


def decoded(data: bytes) -> str:
    """Returns the text of a file of any Unicode encoding that its first bytes announce, else of UTF-8."""
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return data.decode(encoding, errors="replace")
