"""Looks at files and folders of any origin: nothing here hangs, fails or
takes memory without end.

What exists is asked with `is_file` and `is_folder`, what a folder holds with `entries` and `walk`, and what a
file holds with `open_regular` and `read_regular`. A FIFO, a device or a socket is no file of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

DOCUMENT_BYTES = 256 << 20
"""Largest JSON document that is read whole."""
_AT_ONCE = 1 << 20
_MOST_SKIPPED = 64 << 20
"""Bytes of lines that are too long, of one file."""
DEEPEST = 24
"""Folders below one another that `walk` enters."""

Unread = list[tuple[Path, str]]
"""Folders that could not be looked into, and why."""

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, most: int | None = None, *, buffering: int = -1) -> BinaryIO:
    """Open `path` for reading if it is a regular file, through links.

    Args:
        path: of the file.
        most: bytes that it may have. None means any number, for those who read in blocks.
        buffering: as of `open`.

    Raises:
        OSError: it is missing, unreadable, not a regular file or larger.
    """
    # Looked at before it is opened: to open a device can have effects of its own.
    _refuse(path, path.stat(), most)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse(path, os.fstat(handle), most)
        stream: BinaryIO = os.fdopen(handle, "rb", buffering)
        return stream
    except BaseException:
        os.close(handle)
        raise


def _refuse(path: Path, found: os.stat_result, most: int | None) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_kind, name in _KINDS:
        if is_kind(found.st_mode):
            raise OSError(errno.EINVAL, f"is {name}, not a regular file", str(path))
    if most is not None and found.st_size > most:
        reason = f"has {found.st_size:,} bytes; at most {most:,} are read"
        raise OSError(errno.EFBIG, reason, str(path))


def read_regular(path: Path, most: int = DOCUMENT_BYTES) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: as `open_regular`, or it grew beyond `most` meanwhile.
    """
    parts, left = [], most + 1
    with open_regular(path, most) as stream:
        while left and (part := stream.read(min(left, _AT_ONCE))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"grew beyond {most:,} bytes while being read", str(path))
    return b"".join(parts)


def refuse_special(path: Path) -> None:
    """Raise for what `open_regular` refuses: for libraries that open a file by its name themselves.

    Raises:
        OSError: as `open_regular`.
    """
    open_regular(path).close()


def is_file(path: Path) -> bool:
    """Return whether `path` is seen to be a regular file; False also if access is denied."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether `path` is seen to be a folder; False also if access is denied."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_there(path: Path) -> bool:
    """Return whether something has this name, be it a link that leads nowhere; False where it is not seen."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where it is not seen."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def changed_ns(path: Path) -> int:
    """Return when a file last changed, in ns since the epoch; 0 where it is not seen."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def make_shared_folder(folder: Path) -> None:
    """Make a folder with the rights of the one that it lies in, if there is none.

    So users of a group find each other's runs side by side; what is in it has its owner's usual rights.

    Raises:
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IMODE(folder.parent.stat().st_mode))


def owner_name(uid: int) -> str:
    """Return the login name of a user, or `user <uid>` if it is unknown."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def own_first(paths: Sequence[Path]) -> list[Path]:
    """Return those of the paths that belong to this user, or all where none does."""
    own = []
    for path in paths:
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.geteuid():
                own.append(path)
    return own or list(paths)


def absent(path: Path) -> bool:
    """Return whether `path` is known not to exist; a file server that does not answer knows nothing."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def closed(folder: Path) -> str | None:
    """Return why the entries of a folder cannot be listed or reached; None where they can."""
    try:
        with os.scandir(folder):
            _enter(folder)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _enter(folder: Path) -> None:
    """Raise OSError where what the folder holds cannot be reached; pathlib itself drops a dot at the end."""
    os.stat(os.path.join(folder, "."))  # noqa: PTH116, PTH118


def entries(folder: Path, unread: Unread | None = None) -> list[Path]:
    """Return what a folder holds, by name; nothing where it is missing.

    Args:
        folder: to list.
        unread: gets the folder, where it is there and cannot be listed or reached.
    """
    try:
        found = [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208 (names alone)
        _enter(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if unread is not None:
            unread.append((folder, error.strerror or str(error)))
        return []
    return found


def walk(folder: Path, unread: Unread | None = None) -> Iterator[Path]:
    """Yield every regular file below a folder, by name; folders behind links are not entered.

    Args:
        folder: to search.
        unread: gets each folder that cannot be listed or reached.
    """
    return _walk(folder, unread, DEEPEST)


def _walk(folder: Path, unread: Unread | None, deep: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            inside = sorted(found, key=lambda entry: entry.name)
        _enter(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if unread is not None:
            unread.append((folder, error.strerror or str(error)))
        return
    for entry in inside:
        path = folder / entry.name
        if not _is(entry.is_dir, follow_symlinks=False):
            if _is(entry.is_file):
                yield path
        elif deep:
            yield from _walk(path, unread, deep - 1)
        elif unread is not None:
            unread.append((path, f"is nested more than {DEEPEST} folders deep"))


def _is(asked: Callable[..., bool], **how: bool) -> bool:
    try:
        return asked(**how)
    except OSError:
        return False


def line_blocks(path: Path, size: int = 16 << 20, longest: int = 16 << 20) -> Iterator[bytes]:
    """Yield a regular file in blocks of whole lines; only the last line may lack its end.

    Args:
        path: of the file.
        size: bytes that are read at once.
        longest: bytes of a line; of a longer one only so many are given, and its rest is skipped.

    Raises:
        OSError: as `open_regular`, or the file goes on without an end of a line.
    """
    with open_regular(path) as stream:
        left, skipping, skipped = b"", False, 0
        while block := stream.read(size):
            if skipping:
                skip, found, block = block.partition(b"\n")
                skipping, skipped = not found, skipped + len(skip)
                if skipped > _MOST_SKIPPED:
                    reason = f"{_MOST_SKIPPED >> 20} MiB of it have no end of a line: the rest is not read"
                    raise OSError(errno.EFBIG, reason, str(path))
            whole, end, rest = block.rpartition(b"\n")
            if end:
                yield left + whole + end
                left = rest
            else:
                left += rest
            if len(left) > longest:
                yield left[:longest] + b"\n"
                left, skipping = b"", True
        if left:
            yield left


def lines(path: Path, longest: int = 1 << 20) -> Iterator[bytes]:
    """Yield the lines of a regular file with their ends, one at a time; longer ones as `line_blocks`.

    Raises:
        OSError: as `open_regular`.
    """
    for block in line_blocks(path, 1 << 20, longest):
        *whole, rest = block.split(b"\n")
        yield from (line + b"\n" for line in whole)
        if rest:
            yield rest
