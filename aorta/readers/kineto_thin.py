"""Leaves out of Kineto's text the events that nothing here uses, before any is decoded.

Two thirds of a trace are operators and flow arrows. In Kineto's own layout each event begins with the same
bytes, which numpy finds and compares eight at a time; another layout stays whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KEPT_OPERATORS = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.", "nccl:", "gloo:", "## ")
"""Annotations: before these had a category of their own they were operators."""

# Text between events cannot be in one: JSON strings hold no line ends.
_BETWEEN = b"\n  },\n  {"
_OPERATOR = b'\n    "ph": "X", "cat": "cpu_op", "name": "'
_ARROWS = (b'\n    "ph": "s"', b'\n    "ph": "f"')
_KEPT = tuple(name.encode() for name in KEPT_OPERATORS)
_KEPT_FIRST = np.zeros(256, dtype=np.bool_)
_KEPT_FIRST[[name[0] for name in _KEPT]] = True
_BRACE = ord("{")
_REACH = len(_BETWEEN) + len(_OPERATOR) + 8
"""A brace nearer to the end of the text is not looked at, so that nothing is read behind it."""

Positions = NDArray[np.intp]
Words = NDArray[np.uint64]


def thinned(text: bytes) -> tuple[bytes, int]:
    """The text without most events that are not used, and how many those were.

    The first event of a text and the last, which may be incomplete, always stay.
    """
    if len(text) < 2 * _REACH:
        return text, 0
    octets = np.frombuffer(text, dtype=np.uint8)
    # The eight bytes from each position on, as one number; the memory is the text's own.
    words: Words = np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))
    # What lies between events ends with a brace: those are a quarter as many as line ends.
    cuts = np.flatnonzero(octets[len(_BETWEEN) - 1 : -_REACH] == _BRACE)
    cuts = cuts[_matches(words, cuts, _BETWEEN)]
    if len(cuts) < 2:
        return text, 0
    begin = cuts[:-1] + len(_BETWEEN)
    unused = np.zeros(len(cuts), dtype=np.bool_)
    for prefix in _ARROWS:
        unused[:-1] |= _matches(words, begin, prefix)
    place = np.flatnonzero(_matches(words, begin, _OPERATOR))
    unused[place] = True
    named = begin[place] + len(_OPERATOR)
    likely = _KEPT_FIRST[octets[named]]
    for where, name in zip(place[likely].tolist(), named[likely].tolist(), strict=True):
        unused[where] = not text.startswith(_KEPT, name)
    skipped = int(unused.sum())
    if not skipped:
        return text, 0
    # Neighbours that stay are one piece; each begins with what lies between events.
    turns = np.flatnonzero(np.diff(unused)) + 1
    borders = [0, *cuts[turns].tolist(), len(text)]
    if unused[0]:
        borders.insert(1, int(cuts[0]))
    pieces = [text[a:b] for a, b in zip(borders[::2], borders[1::2], strict=True)]
    return b"".join(pieces), skipped


def _matches(words: Words, positions: Positions, prefix: bytes) -> NDArray[np.bool_]:
    """At which of the positions the text goes on with `prefix` (of eight bytes or more)."""
    same = np.ones(len(positions), dtype=np.bool_)
    for start in (*range(0, len(prefix) - 8, 8), len(prefix) - 8):
        same &= words[positions + start] == int.from_bytes(prefix[start : start + 8], "little")
    return same
