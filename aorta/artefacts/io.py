"""How files are written and read: documents aside and renamed, streams a line at a time.

msgspec is imported where JSON is read or written: lines are also written in programs that have no msgspec.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TypeVar

from aorta.artefacts.files import read_regular
from aorta.errors import ArtefactError

T = TypeVar("T")

_UMASK = os.umask(0)
os.umask(_UMASK)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` at once: a reader sees the old file or the new one, never half of it.

    The name of the temporary file is unpredictable; the result has the user's usual permissions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), 0o666 & ~_UMASK)
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def give_usual_permissions(path: Path) -> None:
    """The permissions of a file that the user makes, for one that was made for nobody else to see."""
    path.chmod(0o666 & ~_UMASK)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """`write_bytes` of indented JSON of a record, a dict or a list."""
    import msgspec

    write_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path, kind: type[T]) -> T:
    """The record of type `kind` in `path`; unknown fields are ignored so that newer files stay readable.

    Raises:
        ArtefactError: the file is missing, unreadable or not such a record; names it and the field.
    """
    import msgspec

    try:
        return msgspec.json.decode(read_regular(path), type=kind)
    except FileNotFoundError as error:
        raise ArtefactError(f"{path}: missing") from error
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ArtefactError(f"{path}: nested too deeply") from error


def append_line(path: Path, line: str) -> None:
    """Add one line to `path` and have it on disk before returning: what was accepted survives a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as stream:
        write_whole(stream.fileno(), (line.rstrip("\n") + "\n").encode())
        os.fsync(stream.fileno())


def write_whole(descriptor: int, data: bytes) -> None:
    """Append all of `data` to a file, or nothing: what does not fit on the disk is taken back.

    Args:
        descriptor: of a file whose end is where it is written.
        data: whole lines.

    Raises:
        OSError: why it cannot be written, such as a full disk.
    """
    done = 0
    try:
        # A disk that is filling up takes a part first, and says why at the next part.
        while done < len(data):
            done += os.write(descriptor, data[done:])
    except OSError:
        with contextlib.suppress(OSError):
            end = os.fstat(descriptor).st_size - done
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
        raise
