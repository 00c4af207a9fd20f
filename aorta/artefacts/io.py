"""Finds how files are written and read: documents aside and renamed, streams a line at a time.

msgspec is imported where JSON is read or written: lines are also written in programs that have no msgspec.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

from aorta.artefacts.clean import escaped
from aorta.artefacts.files import read_regular
from aorta.artefacts.masking import Masker, here
from aorta.errors import ArtefactError

T = TypeVar("T")

_MASKED_BYTES = 16 << 20
"""Largest JSON whose texts are masked when it is read; what is larger are numbers."""
_UMASK = os.umask(0)
os.umask(_UMASK)


def write_bytes(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace `path` by `data` at once: a reader sees the old file or the new one, never half of it.

    The name of the temporary file is unpredictable; the result has the user's usual permissions, or, where it
    is private, the owner's alone.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    import tempfile  # it imports more than a command that writes nothing needs

    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), 0o600 if private else 0o666 & ~_UMASK)
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def give_usual_permissions(path: Path) -> None:
    """Give a file or folder that was private until now the permissions of those the user makes."""
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_UMASK)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text for people: secrets are masked, bytes that are no UTF-8 escaped."""
    write_bytes(path, escaped(here().text(text)).encode())


def write_exact(path: Path, text: str, *, private: bool = False) -> None:
    """`write_bytes` of text that a program reads and that must not change: a script, a configuration.

    Args:
        path: of the file.
        text: its content.
        private: only the owner may read it.
    """
    write_bytes(path, text.encode("utf-8", "surrogateescape"), private=private)


def write_json(path: Path, value: object) -> None:
    """`write_bytes` of indented JSON of a record, a dict or a list; its texts as `write_text` writes them."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Indented JSON of a record, a dict or a list, secrets masked and bytes that are no UTF-8 escaped."""
    import msgspec

    return msgspec.json.format(_encoded(value), indent=2) + b"\n"


def json_line(value: object) -> str:
    """The same JSON as one line."""
    return _encoded(value).decode()


def _encoded(value: object) -> bytes:
    import msgspec

    masker = here()
    try:
        data = msgspec.json.encode(value)
        suspicious = masker.suspects(data.decode())
    except UnicodeEncodeError:
        suspicious = True
    if suspicious:
        data = msgspec.json.encode(_written(masker, msgspec.to_builtins(value)))
    return data


def _written(masker: Masker, value: object) -> object:
    """Plain data whose texts may be written; keys are names of ours."""
    if isinstance(value, str):
        return escaped(masker.text(value))
    if isinstance(value, dict):
        return {escaped(str(name)): _written(masker, item) for name, item in value.items()}
    return [_written(masker, item) for item in value] if isinstance(value, (list, tuple)) else value


def read_json(path: Path, kind: type[T]) -> T:
    """The record of type `kind` in `path`; unknown fields are ignored so that newer files stay readable.

    Raises:
        ArtefactError: the file is missing, unreadable or not such a record; names it and the field.
    """
    import msgspec

    try:
        data = read_regular(path)
        masker = here()
        if len(data) <= _MASKED_BYTES and masker.suspects(data.decode("utf-8", "replace")):
            # What another program or an older version wrote is shown and written again.
            return msgspec.convert(_written(masker, msgspec.json.decode(data)), type=kind, str_keys=True)
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError as error:
        raise ArtefactError(f"{path}: missing") from error
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ArtefactError(f"{path}: nested too deeply") from error


def append_line(path: Path, line: str) -> None:
    """Add one line to `path` and have it on disk before returning: what was accepted survives a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as stream:
        write_whole(stream.fileno(), (escaped(here().text(line)).rstrip("\n") + "\n").encode())
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
