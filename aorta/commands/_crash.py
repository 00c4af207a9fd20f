"""A fault of aorta's own: what it says, and the file that a report of it needs."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
import sys
import tempfile
import time
import traceback
from pathlib import Path

from aorta import __version__
from aorta.artefacts.files import owner_name
from aorta.artefacts.masking import here
from aorta.commands._say import say
from aorta.errors import AortaError, ArtefactError, FaultError

_MAY_NOT = (errno.EACCES, errno.EPERM)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_OF_THE_MACHINE = (
    *_MAY_NOT, *_NO_ROOM, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ETIMEDOUT,
)  # fmt: skip
"""Refusals of the system that no program can foresee."""


def fault(error: Exception, about: str = "") -> AortaError:
    """Return the message for an unexpected exception, with its traceback in a file.

    Where the system refused a file or killed a process, the message says so, and there is no traceback.

    Args:
        error: the exception.
        about: what could not be done; empty where the whole command ended.
    """
    what = f"{about}: " if about else ""
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename is not None:
        return ArtefactError(f"{what}{error.filename}: {error.strerror}", _what_to_do(error))
    if isinstance(error, ChildProcessError) and error.errno is None:
        return ArtefactError(
            f"{what}{error}",
            "the system kills processes when memory runs out: use a larger machine, or fewer traces",
        )
    path = _written(error)
    shown = f"report {path}" if path is not None else "report the lines above"
    if path is None:
        say("".join(traceback.format_exception(error)), err=True)
    return FaultError(
        f"{what}{type(error).__name__}: {error}",
        f"this is a bug in aorta; your data is unchanged; please {shown}",
    )


def _what_to_do(error: OSError) -> str:
    if error.errno in _NO_ROOM:
        return "free some space, or name another folder with --results or --docs"
    if error.errno in _MAY_NOT:
        return f"{_rights(Path(os.fsdecode(error.filename)))}name another folder, such as with --results"
    return "check the file system, then try again"


def _rights(path: Path) -> str:
    """Return whose the nearest folder is that this user can see, and its mode; empty if none can be seen."""
    for near in (path, *path.absolute().parents):
        try:
            seen = near.stat()
        except OSError:
            continue
        mode = stat.S_IMODE(seen.st_mode)
        return f"{near} belongs to {owner_name(seen.st_uid)}, mode {mode:04o}: ask for write access, or "
    return ""


def why(error: Exception, what: str) -> str:
    """One line: what could not be done and why. The hint of a bug in aorta is printed."""
    if isinstance(error, AortaError):
        return f"{what}: {error.message}"
    told = fault(error, what)
    if not isinstance(told, FaultError):
        return told.message
    say(f"aorta: {told}", err=True)
    return f"{told.message} (a bug in aorta)"


def _written(error: Exception) -> Path | None:
    """The file with the traceback, readable by its owner alone; None where none can be written.

    It holds no argument and no variable: these may be secret.
    """
    text = "".join(
        [
            f"aorta {__version__}, Python {platform.python_version()}, {platform.platform()}\n",
            f"command: aorta {sys.argv[1] if len(sys.argv) > 1 else ''}\n\n",
            *traceback.format_exception(error),
        ]
    )
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.time_ns() % 10**9:09d}"
    for folder in (_state() / "aorta" / "faults", Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"aorta-fault-{stamp}.txt"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(here().text(text))
            return path
    return None


def _state() -> Path:
    """Returns where programs keep what the user may want to look at later."""
    named = os.environ.get("XDG_STATE_HOME", "")
    return Path(named) if named.startswith("/") else Path(os.path.expanduser("~")) / ".local" / "state"  # noqa: PTH111
