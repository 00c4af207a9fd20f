"""Finds the events in a text of Kineto's own layout, and reads those of driver calls and the GPU all at once.

Kineto writes the same text around its values, over several lines:

      {
        "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
        "ts": 4458676983543.183, "dur": 41.407,
        "args": {
          "External id": 12353,      "queued": 0, "device": 0, "context": 1,      "stream": 7,
          "correlation": 57541, ... "grid": [512, 1, 1], "block": [512, 1, 1]
        }
      },

Two thirds of a trace are operators and flow arrows, which nothing here uses: how they begin tells. Of the
others each byte is compared, is a digit of a number, or is decoded (a name, or the arguments behind the
correlation, once for all events that have the same). What differs in any way is left for the JSON decoder, so
that nothing is read here that it would read differently.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Column
from aorta.readers.kineto_events import KEPT_OPERATORS, POSSIBLE_US, Arguments, Numbering
from aorta.readers.kineto_words import Mask, Positions, Slot, Template, Words, number_to, rows, word

# Text between events cannot be in one: JSON strings hold no line ends.
_BETWEEN = b"\n  },\n  {"
_GAP = len(b",\n  ")
"""Bytes between the end of an event and the brace of the next."""
_SPAN = b'\n    "ph": "X", "cat": "'
_ARROWS = (b'\n    "ph": "s"', b'\n    "ph": "f"')
_NAME = b'", "name": "'
_FRONT = re.compile(
    rb'", "pid": (?P<pid>\d+), "tid": (?P<lane>\d{1,16}),\n'
    rb'    "ts": (?P<us>\d{1,16})(?:\.(?P<ns>\d{3}))?, "dur": \Z'
)
_ARGUMENTS = b',\n    "args": {'
_ARGUMENT = re.compile(rb'(?:,?\s*"([^"\\\x00-\x1f\x80-\xff]+)":\s*)(\d{1,16})')
_DECIMALS = Template(b".000" + _ARGUMENTS, [Slot(1, 3, whole=False)])
_NO_DECIMALS = Template(_ARGUMENTS, [])
_END = b"\n    }\n  }"
_CALLS = ("cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_WANTED = ("device", "stream", "correlation")
_NOT_BEFORE = frozenset(Arguments.__struct_encode_fields__) - {*_WANTED}
_LONGEST_TEMPLATE = 1024
_NEW_TEMPLATES = 4
"""How many are made at most of the events of a category in a text."""
_MOST_TEMPLATES = 16
_MOST_ENDINGS = 1 << 14
_KEPT = tuple(name.encode() for name in KEPT_OPERATORS)
_KEPT_FIRST = np.zeros(256, dtype=np.bool_)
_KEPT_FIRST[[name[0] for name in _KEPT]] = True


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments that end an event."""

    args: Arguments


_NONE_AGAIN = (ABSENT, ABSENT, ABSENT)
_STRING = msgspec.json.Decoder(str)
_CLOSED = msgspec.json.Decoder(_Closed)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Events of a category in the order of the file."""

    category: str
    arguments: Sequence[Arguments]
    """What is behind correlations."""
    event: Positions
    """Which of the text's events each is."""
    start_ns: Column
    end_ns: Column
    lane: Column
    name: Column
    device: Column
    stream: Column
    correlation: Column
    ending: Column
    """Place in `arguments`, for work on the GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The events of a text."""

    text: bytes
    bounds: Positions
    """Where each begins, and where one behind the last would."""
    unused: Mask
    calls: Sequence[Rows]
    gpu: Sequence[Rows]

    def others(self) -> tuple[bytes, Positions]:
        """The text of the events that are used and were not read, and which events they are."""
        chosen = ~self.unused
        for found in (*self.calls, *self.gpu):
            chosen[found.event] = False
        return self._text_of(chosen), np.flatnonzero(chosen)

    def used(self) -> bytes:
        """The text of all events that are used."""
        return self._text_of(~self.unused)

    def _text_of(self, chosen: Mask) -> bytes:
        # Neighbours are one piece.
        borders = self.bounds[np.flatnonzero(np.diff(chosen, prepend=False, append=False))].tolist()
        pieces = zip(borders[::2], borders[1::2], strict=True)
        return b",".join([self.text[first : after - _GAP] for first, after in pieces])


@final
class NameTexts(dict[bytes, int]):
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
        """Begin anew if there are many."""
        if len(self) > _MOST_ENDINGS:
            self.clear()
            self.arguments = []


class Learned:
    """What is known from the text before."""

    def __init__(self, numbering: Numbering) -> None:
        self.names = NameTexts(numbering)
        self.endings = Endings()
        self.templates: defaultdict[tuple[str, str], list[_Named]] = defaultdict(list)


@dataclass(frozen=True, slots=True)
class _Named:
    """A template whose digits have names."""

    template: Template
    slots: dict[str, Slot]


def find(text: bytes, end: int, learned: Learned) -> Found | None:
    """The events in a text before `end`, where one ends; None if it is not in Kineto's layout.

    At least `AHEAD` bytes must follow: comparisons may look so far behind it.
    """
    octets = np.frombuffer(text, dtype=np.uint8)
    braces = np.flatnonzero(octets[:end] == ord("{"))
    before = len(_BETWEEN) - 1
    after_brace = octets[braces - _BETWEEN[::-1].index(b"}")] == ord("}")
    likely = np.flatnonzero(after_brace & (octets[braces - before] == _BETWEEN[0]) & (braces >= before))
    head = rows(text, braces[likely] - (before - 1), 7)
    begins = head[0] == word(_BETWEEN[1:])
    if not begins.all():
        likely, head = likely[begins], head[:, begins]
    if len(likely) == 0:
        return None
    learned.endings.forget()
    # The last brace of an event is the one before the next event's.
    bounds = np.concatenate(([0], braces[likely], [end + _GAP]))
    events = _Events(text, octets, bounds, np.append(braces[likely - 1], braces[-1]), learned)
    unused = np.zeros(len(likely), dtype=np.bool_)
    for arrow in _ARROWS:
        unused |= _is(head[1:3], arrow)
    spans = 1 + np.flatnonzero(_is(head[1:4], _SPAN))
    opening = head[4:, spans - 1]

    def of(category: str) -> tuple[Positions, Positions]:
        beginning = category.encode() + _NAME
        chosen = spans[_is(opening, beginning)]
        return chosen, bounds[chosen] + (1 + len(_SPAN) + len(beginning))

    unused[events.unused_operators(*of("cpu_op")) - 1] = True
    calls = [events.calls(category, *of(category)) for category in _CALLS]
    gpu = [events.on_gpu(category, *of(category)) for category in _ON_GPU]
    # The first event stands behind something else, and is left for the decoder.
    return Found(text, bounds, np.concatenate(([False], unused)), calls, gpu)


def _is(found: Words, text: bytes) -> Mask:
    """Which rows begin with a text of at most as many bytes as they have."""
    same: Mask = found[0] == word(text[:8])
    for column, start in zip(found[1:], range(8, len(text), 8), strict=False):
        piece = text[start : start + 8]
        same &= (column if len(piece) == 8 else column & ((1 << 8 * len(piece)) - 1)) == word(piece)
    return same


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """The events of a text, by number."""

    text: bytes
    octets: NDArray[np.uint8]
    bounds: Positions
    last_brace: Positions
    learned: Learned

    def unused_operators(self, operators: Positions, name: Positions) -> Positions:
        """The operators that are no annotations."""
        likely = np.flatnonzero(_KEPT_FIRST[self.octets[name]])
        kept = [self.text.startswith(_KEPT, place) for place in name[likely].tolist()]
        unused = np.ones(len(operators), dtype=np.bool_)
        unused[likely[kept]] = False
        return operators[unused]

    def calls(self, category: str, events: Positions, name: Positions) -> Rows:
        """The driver calls of a category that have nothing behind their correlation."""
        found, after = self._read(category, events, name, _END)
        whole = after == self.bounds[found.event + 1] - _GAP
        return found if whole.all() else _those(found, whole)

    def on_gpu(self, category: str, events: Positions, name: Positions) -> Rows:
        """The events on the GPU of a category whose arguments behind the correlation can be decoded."""
        found, after = self._read(category, events, name, b"")
        endings = self.learned.endings
        texts = zip(after.tolist(), (self.bounds[found.event + 1] - _GAP).tolist(), strict=True)
        ending = np.array([endings[self.text[a:b]] for a, b in texts], dtype=np.int64)
        found = replace(found, ending=ending, arguments=endings.arguments)
        good = ending >= 0
        return found if good.all() else _those(found, good)

    def _read(
        self, category: str, events: Positions, name: Positions, behind: bytes
    ) -> tuple[Rows, Positions]:
        """The events of a category that can be read up to `behind` their correlation, and the end of that."""
        if len(events) == 0:
            return Rows(category, (), *[events] * 9), events
        brace = self.last_brace[events]
        start, end, lane, name_end = self._front(category, brace, name)
        number = np.full(len(events), -1)
        good = name_end >= name
        texts = zip(name[good].tolist(), name_end[good].tolist(), strict=True)
        names = self.learned.names
        number[good] = [names[self.text[a:b]] for a, b in texts]
        values = {key: np.full(len(events), ABSENT) for key in _WANTED}
        after = np.full(len(events), -1)

        def learn(event: int) -> _Named | None:
            return _of_arguments(self.text, int(brace[event]) + 1, behind)

        fitting = self._fitting((category, "args"), np.flatnonzero(number >= 0), brace + 1, learn)
        for place, named, found in fitting:
            after[place] = brace[place] + 1 + named.template.length
            for key in named.slots:
                values[key][place] = named.template.number(found, named.slots[key])
        read = after >= 0
        columns = (events, start, end, lane, number, *values.values(), number)
        return Rows(category, (), *[column[read] for column in columns]), after[read]

    def _front(
        self, category: str, brace: Positions, name: Positions
    ) -> tuple[Column, Column, Column, Positions]:
        """Start and end in ns, the thread, and where the name ends; the last is -1 for events to be left.

        It is read from the brace of the arguments back to the name.
        """
        decimals = self.octets[brace[0] + 1 - _DECIMALS.length] == ord(".")
        behind = _DECIMALS if decimals else _NO_DECIMALS
        found = rows(self.text, brace + 1 - behind.length, behind.count)
        duration, stop, good = number_to(self.text, brace + 1 - behind.length)
        duration *= 1000
        for slot in behind.slots:
            duration += behind.number(found, slot)
        start, lane, name_end = (np.full(len(brace), -1) for _ in range(3))

        def learn(event: int) -> _Named | None:
            match = _FRONT.search(self.text, int(name[event]), int(stop[event]))
            return None if match is None else _of_front(match)

        left = np.flatnonzero(good & behind.matches(found))
        for place, named, found in self._fitting((category, "front"), left, stop, learn, backwards=True):
            us = named.template.number(found, named.slots["us"])
            ns = us * 1000
            if "ns" in named.slots:
                ns += named.template.number(found, named.slots["ns"])
            start[place] = ns
            lane[place] = named.template.number(found, named.slots["lane"])
            name_end[place] = np.where(us < POSSIBLE_US, stop[place] - named.template.length, -1)
        return start, start + duration.astype(np.int64), lane, name_end

    def _fitting(
        self,
        key: tuple[str, str],
        left: Positions,
        border: Positions,
        learn: Callable[[int], _Named | None],
        *,
        backwards: bool = False,
    ) -> Iterator[tuple[Positions, _Named, Words]]:
        """Events that agree with a template, the template, and its rows; and so on for those of `left`.

        Templates begin (or end, if `backwards`) at the events' `border`. Those that are known are tried
        first; then some are made of the first event that agrees with none.
        """
        known = iter(self.learned.templates[key])
        useful: list[_Named] = []
        made = 0
        while len(left) > 0:
            named = next(known, None)
            new = named is None
            if named is None:
                if made == _NEW_TEMPLATES:
                    break
                made += 1
                named = learn(int(left[0]))
                if named is None:
                    left = left[1:]
                    continue
            begin = border[left] - (named.template.length if backwards else 0)
            found = rows(self.text, begin, named.template.count)
            good = named.template.matches(found)
            if good.all():
                yield left, named, found
            elif good.any():
                yield left[good], named, found[:, good]
            if good.any():
                useful.append(named)
            # Where it is not even its own (a number with a zero before it), it must not be made again.
            good[0] |= new
            left = left[~good]
        self.learned.templates[key] = [*useful, *known][:_MOST_TEMPLATES]


def _of_front(match: re.Match[bytes]) -> _Named:
    """The template of what is between a name and the duration."""
    slots = {
        key: Slot(match.start(key) - match.start(), len(digits), whole=key != "ns")
        for key, digits in match.groupdict().items()
        if digits is not None
    }
    return _Named(Template(match[0], list(slots.values())), slots)


def _of_arguments(text: bytes, begin: int, behind: bytes) -> _Named | None:
    """The template of arguments up to `behind` the correlation.

    None where something else than numbers comes before it, or other text behind it.
    """
    slots: list[Slot] = []
    wanted: dict[str, Slot] = {}
    place, key = begin, ""
    while key != "correlation":
        match = _ARGUMENT.match(text, place, begin + _LONGEST_TEMPLATE)
        if match is None:
            return None
        key, place = match[1].decode(), match.end()
        slots.append(Slot(match.start(2) - begin, len(match[2])))
        if key in _WANTED:
            wanted[key] = slots[-1]
        if key in _NOT_BEFORE:
            return None
    try:
        msgspec.json.decode(b"{%b}" % text[begin:place])
    except msgspec.DecodeError:
        return None
    if not text.startswith(behind, place):
        return None
    return _Named(Template(text[begin : place + len(behind)], slots), wanted)


def _those(found: Rows, chosen: Mask) -> Rows:
    columns = [field.name for field in fields(found) if field.name not in ("category", "arguments")]
    return replace(found, **{name: getattr(found, name)[chosen] for name in columns})
