"""Removes what aorta wrote below a folder that is held open, so that no link leads elsewhere meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.files import DEEPEST
from aorta.commands._owned import is_own_file

NOT_OURS = "aorta did not write it"
"""Reason why a file of the user's stays."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def held(results: Path, folder: Path) -> Iterator[int]:
    """Yields a descriptor of `folder`, which lies below `results` or is it; no link is followed on the way.

    Raises:
        OSError: a part of the way is missing, a link, or no folder.
        ValueError: `folder` does not lie below `results`.
    """
    parts = folder.relative_to(results).parts
    handle = os.open(results, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Clearing:
    """The files that go and stay; both are told by their path below the folder, with `/` between folders."""

    goes: Callable[[str], bool]
    """True for a path that aorta writes; this user's regular files of such paths go."""
    stays: Callable[[str], bool]
    """True for a path that stays without a word."""

    def cleared(self, folder: int, shown: Path, above: str = "", deep: int = DEEPEST) -> list[str]:
        """Removes the files that go from a held folder, then the folders in it that are empty.

        Args:
            folder: its descriptor.
            shown: its path, for words.
            above: its path below the folder that this began with. Empty if it is that one.
            deep: folders below it that are entered.

        Returns:
            What else stays, and why.
        """
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            return [f"{shown}: {error.strerror}"]
        left = []
        for name in names:
            if self.stays(above + name):
                continue
            try:
                left += self._taken(folder, name, shown / name, above + name, deep)
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append(f"{shown / name}: {reason(error)}")
        return left

    def _taken(self, folder: int, name: str, shown: Path, below: str, deep: int) -> list[str]:
        found = os.lstat(name, dir_fd=folder)
        if deep and stat.S_ISDIR(found.st_mode):
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                left = self.cleared(inner, shown, f"{below}/", deep - 1)
            finally:
                os.close(inner)
            if not left:
                os.rmdir(name, dir_fd=folder)
            return left
        if not is_own_file(found) or not self.goes(below):
            return [f"{shown}: {NOT_OURS}"]
        os.unlink(name, dir_fd=folder)
        return []


def reason(error: OSError | ValueError) -> str:
    """Returns why something could not be opened or removed, in words."""
    if isinstance(error, OSError) and error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return "a link or a file has replaced the folder"
    return getattr(error, "strerror", None) or str(error)


def taken_beside(results: Path, path: Path) -> str | None:
    """Removes a file of this user's, an empty folder or a link below `results`.

    Returns:
        Why it stays. None if it went, was not there, belongs to another user, or is not empty any more.
    """
    try:
        with held(results, path.parent) as folder:
            found = os.lstat(path.name, dir_fd=folder)
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(path.name, dir_fd=folder)
            elif stat.S_ISLNK(found.st_mode) or is_own_file(found):
                os.unlink(path.name, dir_fd=folder)
    except (OSError, ValueError) as error:
        gone = isinstance(error, OSError) and error.errno in {errno.ENOENT, errno.ENOTEMPTY}
        return None if gone else f"{path}: {reason(error)}"
    return None
