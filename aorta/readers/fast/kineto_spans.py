"""Reads driver calls and work on the GPU of Kineto's own layout, all of a category at once.

A span is read from the brace of its arguments back to its name, and from there on to the correlation. What
stands between the numbers is a template, made of the first span that agrees with none so far.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Column
from aorta.readers.fast.kineto_names import COUNTED, PLAIN, Endings, Names
from aorta.readers.fast.kineto_words import Mask, Positions, Slot, Template, Words, number_to, rows
from aorta.readers.kineto_events import CALLS, GROUPS, POSSIBLE_US, Arguments, Numbering

_ARGUMENT = re.compile(rb'(?:,?\s*"([^"\\\x00-\x1f\x80-\xff]+)":\s*)(\d{1,16})')
_WANTED = ("device", "stream", "correlation")
_NOT_BEFORE = frozenset(Arguments.__struct_encode_fields__) - {*_WANTED}
_SHAPES = b'"Input Dims"'
_LONGEST_TEMPLATE = 1024
_NEW_TEMPLATES = 8
"""Maximum number of spans that are made per category in a text."""
_MOST_TEMPLATES = 16


class Layout:
    """The text around the values of events.

    Args:
        between: From the end of an event to the brace of the next.
        mark: What follows the brace of an event: it tells it from text in a string.
        indent: Before the first field.
        line: Before the times and before the arguments.
        close: From the last argument to the end of the event.
    """

    def __init__(self, between: bytes, mark: bytes, indent: bytes, line: bytes, close: bytes) -> None:
        self.between, self.mark, self.indent, self.close = between, mark, indent, close
        self.gap = between[::-1].index(b"}") - 1
        """Bytes between the end of an event and the brace of the next."""
        number = rb"\d{1,16}"
        fraction = rb"(?:\.(?P<ns>\d{1,3}))?"
        self.front = re.compile(
            rb'", "pid": (?P<pid>%b), "tid": (?P<lane>%b)%b"ts": (?P<us>%b)%b, "dur": \Z'
            % (number, number, re.escape(line), number, fraction)
        )
        """Returns what stands between a name and the duration."""
        self.arguments = line + b'"args": {'
        self.behind = re.compile(fraction + re.escape(self.arguments) + rb"\Z")
        """Returns what stands between the whole µs of the duration and the arguments."""


LAYOUTS = (
    # Text between events cannot be in one: JSON strings hold no line ends, and no quotes.
    Layout(b"\n  },\n  {", b"", b"\n    ", b",\n    ", b"\n    }\n  }"),
    Layout(b"}, {", b'"ph": "', b"", b", ", b"}}"),
)
"""Kineto's own, and that of Python's `json`."""


class CategoryEvents(Struct, frozen=True, eq=False):
    """Events of a category in the order of the file."""

    category: str
    arguments: Sequence[Arguments]
    """Text after the correlations."""
    event: Positions
    """Index of each among the events of the text."""
    start_ns: Column
    end_ns: Column
    lane: Column
    name: Column
    device: Column
    stream: Column
    correlation: Column
    ending: Column
    """Place in `arguments`, for work on the GPU."""


class _Named(Struct, frozen=True):
    """A template whose digits have names."""

    template: Template
    slots: dict[str, Slot]

    def thousandths(self, found: Words) -> Words | int:
        """The decimals in each row."""
        slot = self.slots.get("ns")
        return 0 if slot is None else self.template.number(found, slot) * 10 ** (3 - slot.width)


class Learned:
    """Says what is known from the text before."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.names = Names(numbering)
        self.endings = Endings()
        self.templates: defaultdict[str, list[_Named]] = defaultdict(list)


class Spans(Struct, frozen=True, eq=False):
    """Reads the spans among the events of a text, which are called by their number in it."""

    text: bytes
    layout: Layout
    ends: Positions
    """Place where each event ends."""
    last_brace: Positions
    """In each event: that of its arguments, if it is a span."""
    learned: Learned

    def read(self, chosen: Mapping[str, tuple[Positions, Positions]]) -> list[CategoryEvents]:
        """Decode the readable spans in `chosen`, which maps categories to spans and where names begin."""
        self.learned.endings.forget()
        events, name = (np.concatenate(parts) for parts in zip(*chosen.values(), strict=True))
        if len(events) == 0:
            return []
        brace = self.last_brace[events]
        start, end, lane, name_end = self._front(brace, name)
        named = np.flatnonzero(name_end >= name)
        number = np.full(len(events), -1)
        number[named] = self.learned.names.numbers(self.text, name[named], name_end[named])
        found = []
        first = 0
        for category, (own, _) in chosen.items():
            span = slice(first, first + len(own))
            first += len(own)
            columns = (own, start[span], end[span], lane[span], number[span])
            found.append(self._arguments(category, brace[span] + 1, columns))
        return found

    def fronts(self, category: str, spans: Positions, name: Positions) -> CategoryEvents:
        """Decode the readable spans of a category, without their arguments.

        Annotations are left, as are operators with the shapes that their operations are counted by.
        """
        start, end, lane, name_end = self._front(self.last_brace[spans], name)
        good = np.flatnonzero(name_end >= name)
        number = self.learned.names.numbers(self.text, name[good], name_end[good])
        good, number = good[number >= 0], number[number >= 0]
        kind = self.learned.names.kinds(number)
        plain, counted = kind == PLAIN, np.flatnonzero(kind == COUNTED)
        events = zip(name[good[counted]].tolist(), self.ends[spans[good[counted]]].tolist(), strict=True)
        plain[counted] = [self.text.find(_SHAPES, first, end) < 0 for first, end in events]
        good, number = good[plain], number[plain]
        absent = np.full(len(good), ABSENT)
        columns = (spans[good], start[good], end[good], lane[good], number)
        return CategoryEvents(category, (), *columns, absent, absent, absent, absent)

    def _front(self, brace: Positions, name: Positions) -> tuple[Column, Column, Column, Positions]:
        """Start and end in ns, the thread, and where the name ends; the last is -1 for spans to be left."""
        start, duration, lane, name_end, stop = (np.full(len(brace), -1) for _ in range(5))

        def learn_behind(span: int) -> _Named | None:
            after = int(brace[span]) + 1
            return _named(self.layout.behind.search(self.text, after - len(self.layout.arguments) - 4, after))

        fitting = self._fitting("behind", np.arange(len(brace)), brace + 1, learn_behind, backwards=True)
        for place, named, found in fitting:
            whole, first, good = number_to(self.text, brace[place] + 1 - named.template.length)
            duration[place] = whole * 1000 + named.thousandths(found)
            stop[place] = np.where(good, first, -1)

        def learn_front(span: int) -> _Named | None:
            return _named(self.layout.front.search(self.text, int(name[span]), int(stop[span])))

        fitting = self._fitting("front", np.flatnonzero(stop >= 0), stop, learn_front, backwards=True)
        for place, named, found in fitting:
            us = named.template.number(found, named.slots["us"])
            start[place] = us * 1000 + named.thousandths(found)
            lane[place] = named.template.number(found, named.slots["lane"])
            name_end[place] = np.where(us < POSSIBLE_US, stop[place] - named.template.length, -1)
        return start, start + duration, lane, name_end

    def _arguments(self, category: str, begin: Positions, columns: tuple[Column, ...]) -> CategoryEvents:
        """The spans of a category whose arguments, from `begin` on, can be read too."""
        is_call = GROUPS[category] == CALLS
        # Nothing stands behind the correlation of a driver call.
        behind = self.layout.close if is_call else b""
        values = {key: np.full(len(begin), ABSENT) for key in _WANTED}
        after = np.full(len(begin), -1)

        def learn(span: int) -> _Named | None:
            return _of_arguments(self.text, int(begin[span]), behind)

        left = np.flatnonzero(columns[-1] >= 0)
        for place, named, found in self._fitting(category, left, begin, learn):
            after[place] = begin[place] + named.template.length
            for key in named.slots:
                values[key][place] = named.template.number(found, named.slots[key])
        ending = np.full(len(begin), -1)
        if is_call:
            ending[after == self.ends[columns[0]]] = 0
        else:
            read = np.flatnonzero(after >= 0)
            texts = zip(after[read].tolist(), self.ends[columns[0][read]].tolist(), strict=True)
            endings = self.learned.endings
            ending[read] = [endings[self.text[a:b]] for a, b in texts]
        made = CategoryEvents(category, self.learned.endings.arguments, *[*columns, *values.values(), ending])
        return made if (ending >= 0).all() else _those(made, ending >= 0)

    def _fitting(
        self,
        key: str,
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


def _named(match: re.Match[bytes] | None) -> _Named | None:
    """The template of a match, the digits of which are its groups."""
    if match is None:
        return None
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


def _those(found: CategoryEvents, chosen: Mask) -> CategoryEvents:
    columns = [name for name in found.__struct_fields__ if name not in ("category", "arguments")]
    return replace(found, **{name: getattr(found, name)[chosen] for name in columns})
