"""A file assembled from pieces, and replaced only where it differs from what is there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import open_regular
from aorta.artefacts.io import give_usual_permissions

_AT_ONCE = 1 << 20


class Rewritten:
    """Pieces are compared with the file at `path`; from the first difference on they are written aside.

    `keep` puts them in place at once; without it, or where nothing differs, the file stays as it is. What
    cannot be written is a problem, not an error.
    """

    def __init__(self, path: Path, start: str) -> None:
        """A file at `path` that begins with `start`."""
        self._path, self._start = path, start.encode()
        self._old: BinaryIO | None = None
        self._new: BinaryIO | None = None
        self._aside: Path | None = None
        self._same = 0
        self._error: OSError | None = None

    def __enter__(self) -> Rewritten:
        with contextlib.suppress(OSError):
            self._old = open_regular(self._path)
        self.write(self._start)
        return self

    def write(self, piece: bytes) -> None:
        """The next piece."""
        if self._error is not None:
            return
        try:
            if self._new is None and self._old is not None and self._old.read(len(piece)) == piece:
                self._same += len(piece)
                return
            self._open_aside().write(piece)
        except OSError as error:
            self._error = error

    def unchanged(self) -> bool:
        """True if the file holds the pieces so far, and nothing else."""
        if self._new is not None or self._old is None or self._error is not None:
            return False
        try:
            return os.fstat(self._old.fileno()).st_size == self._same
        except OSError as error:
            self._error = error
            return False

    def keep(self, problems: list[Problem]) -> None:
        """The pieces are all: put them in place, unless the file holds them already."""
        try:
            if self._error is not None:
                raise self._error
            if self.unchanged():
                return
            stream = self._open_aside()
            assert self._aside is not None
            stream.flush()
            os.fsync(stream.fileno())
            give_usual_permissions(self._aside)
            self._aside.replace(self._path)
        except OSError as error:
            problems.append(Problem(file=self._path.name, reason=f"cannot be written: {error.strerror}"))

    def _open_aside(self) -> BinaryIO:
        """The new file, with as much of the old one as is the same."""
        if self._new is None:
            import tempfile  # it imports more than a command that writes nothing needs

            handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            self._new, self._aside = os.fdopen(handle, "wb"), Path(name)
            if self._old is not None:
                self._old.seek(0)
                left = self._same
                while left:
                    piece = self._old.read(min(left, _AT_ONCE))
                    self._new.write(piece)
                    left -= len(piece)
        return self._new

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._old, self._new):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._aside is not None:
            self._aside.unlink(missing_ok=True)
