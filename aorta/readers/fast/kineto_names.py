"""Numbers the names in a text of Kineto events, and the arguments that many of them share."""

from __future__ import annotations

import itertools
from typing import final

import msgspec
import numpy as np

from aorta.artefacts.events import ABSENT, Column
from aorta.readers.fast.kineto_words import Positions, rows
from aorta.readers.kineto_events import KEPT_OPERATORS, Arguments, Numbering
from aorta.readers.kineto_flops import COUNTED as COUNTED_OPERATORS

_WORDS = 5
"""Number of words in a short name."""
_PLACES = 1 << 10
_MULTIPLIERS = np.array([[0x9E3779B97F4A7C15 + 0x1234567890 * n] for n in range(_WORDS)], dtype=np.uint64)
_MOST_ENDINGS = 1 << 14


_INSIDE = np.array(
    [
        [(1 << 8 * min(max(length - 8 * place, 0), 8)) - 1 for length in range(8 * _WORDS + 1)]
        for place in range(_WORDS)
    ],
    dtype=np.uint64,
)
"""For each length of a short name the bits of its words that are in it, shape (words, lengths)."""


@final
class _Texts(dict[bytes, int]):
    """The numbers of names by their JSON text, without the quotes around it; -1 if that is not a string's."""

    def __init__(self, numbering: Numbering) -> None:
        super().__init__()
        self._numbering = numbering

    def __missing__(self, text: bytes) -> int:
        try:
            number = self._numbering[_STRING.decode(b'"%b"' % text)]
        except (msgspec.DecodeError, UnicodeDecodeError):
            number = -1
        self[text] = number
        return number


PLAIN, ANNOTATION, COUNTED = range(3)
"""Operators: of neither kind; annotations; those whose operations are counted where shapes are recorded."""
_COUNTED = frozenset(COUNTED_OPERATORS)


class Names:
    """Numbers names by their JSON text.

    A short name is looked for at the place in a table that its words lead to, all at once; a name that is not
    there, or long, on its own.
    """

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._kinds: list[int] = []
        self._texts = _Texts(numbering)
        self._words = np.zeros((_WORDS, _PLACES), dtype=np.uint64)
        self._length = np.full(_PLACES, -1)
        self._number = np.full(_PLACES, -1)

    def kinds(self, numbers: Column) -> Column:
        """The kind of each operator, by the number of its name."""
        for name in itertools.islice(self._numbering, len(self._kinds), None):
            kept = ANNOTATION if name.startswith(KEPT_OPERATORS) else PLAIN
            self._kinds.append(COUNTED if name in _COUNTED else kept)
        return np.array(self._kinds, dtype=np.int64)[numbers]

    def numbers(self, text: bytes, begin: Positions, end: Positions) -> Column:
        """The number of each name in a text; -1 where it is not the text of a JSON string."""
        length = end - begin
        short = np.flatnonzero(length <= 8 * _WORDS)
        found = rows(text, begin[short], _WORDS) & _INSIDE[:, length[short]]
        place = ((found * _MULTIPLIERS).sum(axis=0) >> 54).astype(np.int64)
        known = (self._length[place] == length[short]) & (self._words[:, place] == found).all(axis=0)
        number = np.full(len(begin), -1)
        number[short] = self._number[place]
        alone = np.ones(len(begin), dtype=np.bool_)
        alone[short[known]] = False
        texts = zip(begin[alone].tolist(), end[alone].tolist(), strict=True)
        number[alone] = [self._texts[text[a:b]] for a, b in texts]
        new, first = np.unique(place[~known], return_index=True)
        chosen = np.flatnonzero(~known)[first]
        self._words[:, new] = found[:, chosen]
        self._length[new] = length[short[chosen]]
        self._number[new] = number[short[chosen]]
        return number


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments that end an event."""

    args: Arguments


_STRING = msgspec.json.Decoder(str)
_CLOSED = msgspec.json.Decoder(_Closed)
_NONE_AGAIN = (ABSENT, ABSENT, ABSENT)


@final
class Endings(dict[bytes, int]):
    """The texts behind a correlation by number; -1 for one that cannot be decoded alone.

    A program launches the same kernels in each step. What is never the same would fill the memory: when
    there are very many, all are forgotten.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[Arguments] = []

    def __missing__(self, text: bytes) -> int:
        number = -1
        try:
            # A number that goes on is no text that may stand here.
            arguments = _CLOSED.decode(b'{"args":{"":""' + text).args
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            if (arguments.device, arguments.stream, arguments.correlation) == _NONE_AGAIN:
                number = len(self.arguments)
                self.arguments.append(arguments)
        self[text] = number
        return number

    def forget(self) -> None:
        """Begin again if there are many."""
        if len(self) > _MOST_ENDINGS:
            self.clear()
            self.arguments = []
