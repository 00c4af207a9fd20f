"""Checks the profiler's reports: whether each rank left one, and what is wrong if not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.records import RankExit
from aorta.units import BYTES_PER_GIB

LOW_BYTES = BYTES_PER_GIB
"""Least free space in the temporary folder: below it there is a warning before the start."""
FULL_BYTES = 64 << 20
"""Least free space at any time: below it nsys may have lost data."""
NO_ROOM_BYTES = 64 << 10
"""Below this free space the results' file system counts as full: no line of a step record is that long."""
_REPORT = re.compile(r"^(?:\[rank\d+\]:?)?\s*(/\S.*\.(?:nsys-rep|qdstrm))\s*$")
_PLACEHOLDER = re.compile(r"%(?:q\{[^}]*\}|env\{[^}]*\}%|[hp]\b)")


class TempSpace:
    """Least free space of the temporary folder, in which nsys keeps its data while a rank runs."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else Path(tempfile.gettempdir())
        self.least = self._free()
        self.began_s = time.time()

    def look(self) -> None:
        """Take note of what is free now."""
        self.least = min(self.least, self._free())

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free

    @property
    def warning(self) -> str | None:
        """A warning before the start; None if there is room."""
        if self.least >= LOW_BYTES:
            return None
        return (
            f"only {self.least / BYTES_PER_GIB:.2f} GiB free in {self.folder}: set TMPDIR to another folder"
        )

    def finding(self, exits: Sequence[RankExit]) -> str | None:
        """The damage of a full folder; None if it was never full."""
        if self.least >= FULL_BYTES:
            return None
        died = [str(item.rank) for item in exits if item.signal in ("SIGSEGV", "SIGBUS")]
        words = f"{self.folder} was full ({self.least >> 20} MiB free), and the profiler keeps its data there"
        words += (
            f"; it ends ranks by {'/'.join(('SIGSEGV', 'SIGBUS'))}, here {', '.join(died)}" if died else ""
        )
        return f"{words}. Set TMPDIR to a larger folder"


class ResultsSpace:
    """Watches if the file system of the results was full while the ranks ran, as far as it tells its free
    space.

    Args:
        folder: of the run.
        free: its free bytes.
    """

    def __init__(
        self, folder: Path, free: Callable[[Path], int] = lambda at: shutil.disk_usage(at).free
    ) -> None:
        self._folder = folder
        self._free = free
        self._full_looks = 0
        self.full = False
        """Now."""

    def look(self) -> bool:
        """Take note of what is free now; whether it has just become full."""
        before = self.full
        with contextlib.suppress(OSError):
            self.full = self._free(self._folder) < NO_ROOM_BYTES
        self._full_looks += self.full
        return self.full and not before

    @property
    def finding(self) -> str | None:
        """The data that was lost; None if it was never full."""
        if not self._full_looks:
            return None
        until = "and still is" if self.full else "and has room again"
        return (
            f"the disk of {self._folder} was full while the ranks ran {until}: measurements from that time "
            "are lost, but training continued"
        )


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports that a rank's profiler left."""

    complete: list[Path]
    """Reports, or rocprofv3's files."""
    streams: list[Path]
    """`.qdstrm`: raw data of nsys, not yet a report."""


def of_rank(folder: Path, rank: int) -> Reports:
    """The files of `rank` in `folder` and one level below, sorted."""
    mark = f"_rank{rank}_"
    found = [path for path in (*folder.glob(f"*{mark}*"), *folder.glob(f"*/*{mark}*")) if path.is_file()]
    # `_rank1_` is no part of `_rank10_`.
    kept = sorted(path for path in found if path.stat().st_size > 0)
    streams = [path for path in kept if path.suffix == ".qdstrm"]
    exports = (".qdstrm", ".sqlite")
    return Reports([path for path in kept if path.suffix not in exports], streams)


def findings(
    folder: Path, stem: str, ranks: Sequence[int], output: Mapping[int, Sequence[str]], began_s: float
) -> list[str]:
    """Reports of ranks that are missing and why, one line each; strayed ones are brought home.

    Args:
        folder: where the reports belong.
        stem: start of their names.
        ranks: of this node.
        output: last lines that each rank printed, the profiler's words included.
        began_s: when the ranks began, as files' times tell it. An older file is no report of theirs.
    """
    said = []
    for path in sorted(folder.glob("*")):
        match = _PLACEHOLDER.search(path.name)
        if match:
            said.append(
                f"{path.name}: {match[0]} was not replaced, because that variable was not set, so ranks "
                "share a name"
            )
    for rank in ranks:
        found = of_rank(folder, rank)
        if found.complete or found.streams:
            continue
        lines = output.get(rank, ())
        strayed = _strayed(lines, folder)
        moved = [
            path
            for path in strayed
            if _written_since(path, began_s) and _bring_home(path, folder / f"{stem}_rank{rank}_{path.name}")
        ]
        if moved:
            said.append(f"the report of rank {rank} was in {moved[0].parent} and was moved to {folder}")
        else:
            said.append(f"profiler's report of rank {rank}: {_reason(lines, strayed)}")
    return said


def _strayed(lines: Sequence[str], folder: Path) -> list[Path]:
    """Reports that the profiler says it wrote elsewhere."""
    matches = [_REPORT.match(line) for line in lines]
    paths = [Path(match[1]) for match in matches if match]
    return [path for path in dict.fromkeys(paths) if path.parent != folder]


def _written_since(path: Path, began_s: float) -> bool:
    """Return whether `path` is a file of this user that changed since `began_s`.

    A program can print any path: only what its profiler may have written is moved.
    """
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mtime >= began_s


def _bring_home(path: Path, target: Path) -> bool:
    try:
        shutil.move(path, target)
    except OSError:
        return False
    return True


_HINTS = (
    ("Import Failed", "the profiler could not write it (is the disk full?)"),
    ("No space left on device", "the profiler could not write it: the disk is full"),
    ("No reports were generated", "the profiler was never told to start"),
    (
        "sem_open",
        "the profiler did not start (with version 2022.4, this happens if two profilers start at the same "
        "moment): submit again",
    ),
    ("unrecognised option", "this version of the profiler does not support an option"),
    ("unrecognized option", "this version of the profiler does not support an option"),
)


def _reason(lines: Sequence[str], strayed: Sequence[Path]) -> str:
    """Why a report is missing, with the profiler's own words where there are some."""
    for words, reason in _HINTS:
        for index, line in enumerate(lines):
            if words in line:
                rest = (
                    line.partition(words)[2].lstrip(" :").rstrip()
                    or "".join(lines[index + 1 : index + 2]).strip()
                )
                return f"{reason}: {rest}" if rest else reason
    if strayed:
        return f"the profiler left it at {strayed[0]}, and it could not be moved"
    if lines and "Generating '" in lines[-1]:
        return "the rank was ended while the profiler was still writing it"
    if any(line.rstrip().endswith("Generated:") for line in lines):
        return (
            "the profiler ended without a report, because its capture range never began (check that there "
            "were enough steps)"
        )
    return "the profiler wrote no report, and the rank's output does not show why"
