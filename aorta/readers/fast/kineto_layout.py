"""Finds the events in a text of a known layout, and reads those of driver calls and the GPU all at once.

Kineto writes the same text around its values, over several lines, and tools that write its traces again with
Python's `json` do it on one:

      {
        "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
        "ts": 4458676983543.183, "dur": 41.407,
        "args": {
          "External id": 12353,      "queued": 0, "device": 0, "context": 1,      "stream": 7,
          "correlation": 57541, ... "grid": [512, 1, 1], "block": [512, 1, 1]
        }
      },

How a flow arrow begins tells that nothing here uses it. Of operators, which are half of a trace,
everything before the arguments is read. Of the others each byte is compared, is a digit of a number, or is
decoded (a name, or the arguments behind the correlation, once for all events that have the same). What
differs in any way is left for the JSON decoder, so that nothing is read here that it would read differently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.readers.fast.kineto_spans import LAYOUTS, CategoryEvents, Layout, Learned, Spans
from aorta.readers.fast.kineto_words import Mask, Positions, Words, rows, word

_NAME = b'", "name": "'
_READ = ("cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories. With what follows they are not longer than three words."""
_PART = 128 << 10


class TextEvents(Struct, frozen=True, eq=False):
    """The events of a text."""

    text: bytes
    layout: Layout
    bounds: Positions
    """Place where each begins, and where one behind the last would."""
    unused: Mask
    read: Sequence[CategoryEvents]

    def others(self) -> tuple[bytes, Positions]:
        """The text of the events that are used and were not read, and which events they are."""
        chosen = ~self.unused
        for found in self.read:
            chosen[found.event] = False
        return self._text_of(chosen), np.flatnonzero(chosen)

    def event(self, number: int) -> bytes:
        """The text of an event."""
        return self.text[self.bounds[number] : self.bounds[number + 1] - self.layout.gap]

    def used(self) -> bytes:
        """The text of all events that are used."""
        return self._text_of(~self.unused)

    def _text_of(self, chosen: Mask) -> bytes:
        # Neighbours are one piece.
        borders = self.bounds[np.flatnonzero(np.diff(chosen, prepend=False, append=False))].tolist()
        pieces = zip(borders[::2], borders[1::2], strict=True)
        return b",".join([self.text[first : after - self.layout.gap] for first, after in pieces])


def find(text: bytes, end: int, learned: Learned) -> TextEvents | None:
    """The events in a text before `end`, where one ends; None if it is in no known layout.

    At least `AHEAD` bytes must follow: comparisons may look so far behind it.
    """
    braces = _places(np.frombuffer(text, dtype=np.uint8, count=end), ord("{"))
    for layout in LAYOUTS:
        found = _find_in(layout, text, braces, end, learned)
        if found is not None:
            return found
    return None


def _find_in(layout: Layout, text: bytes, braces: Positions, end: int, learned: Learned) -> TextEvents | None:
    """The events in a text of a layout; `braces` are all opening ones."""
    octets = np.frombuffer(text, dtype=np.uint8)
    between, span = layout.between, layout.indent + b'"ph": "X", "cat": "'
    after_brace = octets[braces - between[::-1].index(b"}")] == ord("}")
    before = len(between) - 1
    likely = np.flatnonzero(after_brace & (octets[braces - before] == between[0]) & (braces >= 8 + before))
    # Rows begin so that the category does at a word, and hold three more.
    skipped = -(before + len(span)) % 8
    count = (skipped + before + len(span)) // 8
    head = rows(text, braces[likely] + 1 - before - skipped, count + 3)
    begins = _is(head, between[1:] + layout.mark, skipped)
    if not begins.all():
        likely, head = likely[begins], head[:, begins]
    if len(likely) == 0:
        return None
    bounds = np.concatenate(([0], braces[likely], [end + layout.gap]))
    # With more braces than its own something else may stand behind an event.
    inside = np.diff(likely, append=len(braces))
    unused = np.zeros(len(likely), dtype=np.bool_)
    for arrow in (b'"ph": "s"', b'"ph": "f"'):
        unused |= _is(head, between[1:] + layout.indent + arrow, skipped)
    # The first event stands behind something else, and is left for the decoder.
    spans = 1 + np.flatnonzero(_is(head, between[1:] + span, skipped))
    opening = head[count:, spans - 1]

    def of(category: str) -> tuple[Positions, Positions]:
        """The spans of a category, and where their names begin."""
        beginning = category.encode() + _NAME
        chosen = spans[_is(opening, beginning)]
        return chosen, bounds[chosen] + (1 + len(span) + len(beginning))

    unused &= inside == 1
    # The last brace of an event is the one before the next event's.
    last_brace = np.append(braces[likely - 1], braces[-1])
    reader = Spans(text, layout, bounds[1:] - layout.gap, last_brace, learned)
    read = reader.read({category: of(category) for category in _READ})
    operators, names = of("cpu_op")
    plain = inside[operators - 1] == 2
    read.append(reader.fronts("cpu_op", operators[plain], names[plain]))
    return TextEvents(text, layout, bounds, np.concatenate(([False], unused)), read)


def _places(octets: NDArray[np.uint8], byte: int) -> Positions:
    """Returns where a byte is; a part after the other, so that each stays in the processor's cache."""
    parts = range(0, len(octets), _PART)
    return np.concatenate([np.flatnonzero(octets[start : start + _PART] == byte) + start for start in parts])


def _is(found: Words, text: bytes, skipped: int = 0) -> Mask:
    """Returns which rows begin, behind some bytes that are skipped, with a text that fits into them."""
    same = np.ones(found.shape[1], dtype=np.bool_)
    for column, start in zip(found, range(0, skipped + len(text), 8), strict=False):
        first = max(skipped - start, 0)
        piece = text[start + first - skipped : start + 8 - skipped]
        known = ((1 << 8 * len(piece)) - 1) << 8 * first
        value = column if known == (1 << 64) - 1 else column & known
        same &= value == word(piece) << 8 * first
    return same
