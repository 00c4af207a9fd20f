"""Finds traces that are copies of others: packed and unpacked, in two folders, or cut off on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Trace
from aorta.artefacts.files import is_file
from aorta.readers.detect import content


def without_copies(same: Sequence[Trace]) -> tuple[list[Trace], list[Problem]]:
    """Returns the traces of one rank without copies of others, and what was left out.

    A file that another one begins with is a copy of it, or what is left of one.
    """
    kept = list(same)
    problems: list[Problem] = []
    for trace in same:
        others = [other for other in kept if other is not trace]
        whole = next((other for other in others if _begins_with(other, trace)), None)
        if trace in kept and whole is not None:
            kept = others
            reason = f"{trace.source}: not used, because it is a copy of {whole.source}, or a part of one"
            problems.append(Problem(file=trace.source, reason=reason))
    return kept, problems


def _begins_with(whole: Trace, part: Trace) -> bool:
    """Returns True if the content of one trace's file begins with that of another's."""
    one, other = Path(whole.source), Path(part.source)
    if one == other or not (is_file(one) and is_file(other)):
        return False
    long, short = _bytes(one), _bytes(other)
    held = b""
    for piece in short:
        while len(held) < len(piece):
            more = next(long, b"")
            if not more:
                return False
            held += more
        if not held.startswith(piece):
            return False
        held = held[len(piece) :]
    return True


def _bytes(path: Path) -> Iterator[bytes]:
    return (block for block in content(path) if block)
