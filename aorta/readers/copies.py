"""Copies of this process that share out items: lighter than a pool, which takes as long as a small trace."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K")

_WORD = 4
_MOST_TURNS = 1024
"""Turns that fit into any pipe."""


class Turns:
    """Hands out the places of items, each one once, to whichever process asks next.

    They lie in a pipe, out of which every process reads one at a time.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._stride = max(-(-count // _MOST_TURNS), 1)
        self._source, sink = os.pipe()
        turns = range(-(-count // self._stride))
        os.write(sink, b"".join(turn.to_bytes(_WORD, "little") for turn in turns))
        os.close(sink)

    def __iter__(self) -> Iterator[int]:
        """The places that this process gets."""
        while turn := os.read(self._source, _WORD):
            first = int.from_bytes(turn, "little") * self._stride
            yield from range(first, min(first + self._stride, self._count))

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._source)


def taken(function: Callable[[K], T], items: Sequence[K], turns: Turns) -> dict[int, T]:
    """`function` of each item that this process gets, by place."""
    return {place: function(items[place]) for place in turns}


_ending: list[int] = []
"""Copies that have sent their results; the system takes some ms to free the memory of each."""


class Copy:
    """A copy of this process that works on some of the items; it must be closed."""

    def __init__(self, function: Callable[[K], T], items: Sequence[K], turns: Turns) -> None:
        _ending[:] = [process for process in _ending if not _ended(process)]
        self._done = False
        self._source, sink = os.pipe()
        self._open = True
        self._process = os.fork()
        if self._process == 0:
            # Nothing of this process may run in the copy behind this: neither its `finally` nor its output.
            try:
                _ending.clear()  # they are not this process's own
                os.close(self._source)
                _send(sink, lambda: taken(function, items, turns))
            finally:
                os._exit(0)
        os.close(sink)

    def results(self) -> dict[int, Any]:
        """The copy's results by place.

        Raises:
            Exception: as the function raised it.
            ChildProcessError: the copy was killed.
        """
        with os.fdopen(self._source, "rb", closefd=False) as stream:
            text = stream.read()
        if not text:
            raise ChildProcessError("a process that was reading some of the files was killed")
        self._done = True
        try:
            found = pickle.loads(text)  # noqa: S301  a copy of this process wrote it
        except (pickle.UnpicklingError, EOFError):
            raise ChildProcessError("a process that was sending its results was killed") from None
        if isinstance(found, Exception):
            raise found
        return dict(found)

    def close(self) -> None:
        """Stop the copy where it still works."""
        if self._open:
            self._open = False
            os.close(self._source)
            if self._done:
                _ending.append(self._process)
                return
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)


def _ended(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True  # somebody else waited for it


def _send(sink: int, make: Callable[[], object]) -> None:
    try:
        made = make()
    except Exception as error:  # raised again where the results are asked for
        made = error
    try:
        text = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # nothing sent would mean that this copy was killed
        text = pickle.dumps(RuntimeError(f"a result cannot be sent: {error}"))
    with os.fdopen(sink, "wb") as stream:
        stream.write(text)
