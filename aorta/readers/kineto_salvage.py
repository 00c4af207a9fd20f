"""Takes the good events out of what is not quite JSON: unescaped quotes, control characters, cut ends."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from decimal import Decimal

_NEXT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:)')
_GAP = re.compile(r"[\s,]*")
_NAME = re.compile(
    r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|"\s*\}\s*$)', re.DOTALL
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s",:\[\]{}]+')
_JSON_VALUE = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_TIME_AS_TEXT = re.compile(rb'("(?:ts|dur)"\s*:\s*)"\s*(-?\d[\d.eE+-]*)\s*"')
_LONE_QUOTE = re.compile(r'(?<!\\)"')
_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrtu])')
_DECODER = json.JSONDecoder(strict=False)
_LONGEST_EVENT = 64 << 10
"""Longer pieces are no single event; to look for a name's end in them takes quadratic time."""

MALFORMED = "not valid JSON"
TRUNCATED = "cut off by the end of the file"
REPAIRED = "with unescaped quotes in the name (repaired)"


def plain_json(text: bytes) -> bytes:
    """Returns the text with `inf` and `nan` replaced by null, and `.5` and `0x1f` by decimal numbers.

    Times in quotes become numbers. Text in strings stays as it is.
    """
    return _TIME_AS_TEXT.sub(rb"\1\2", _TOKEN.sub(_plain_value, text))


def _plain_value(token: re.Match[bytes]) -> bytes:
    value = token[0]
    if value[:1] == b'"' or _JSON_VALUE.fullmatch(value):
        return value
    try:
        if value.lower().startswith((b"0x", b"-0x")):
            return b"%d" % int(value, 16)
        number = float(value)
        digits = value.lstrip(b"+").decode()
        return str(Decimal(digits)).encode() if math.isfinite(number) and "_" not in digits else b"null"
    except (ValueError, ArithmeticError):
        return b"null"


def salvage(text: bytes, *, last: bool) -> tuple[list[bytes], Counter[str], str | None]:
    """The text of each event that can be read, why others cannot, and what follows the array.

    `last` says that the file ends with this text. The third value is None where the array does not end in
    it. The text of an event is valid JSON.
    """
    source = text.decode("utf-8", errors="replace")
    events: list[bytes] = []
    faults: Counter[str] = Counter()
    position = 0
    while True:
        position = _end(_GAP.match(source, position), position)
        if position >= len(source):
            return events, faults, None
        if source[position] == "]":
            return events, faults, source[position + 1 :]
        event, stop = _decode(source, position)
        if stop is None:
            following = _NEXT.search(source, position)
            piece = source[position : following.start() + 1] if following else source[position:]
            event, fault = _repair(piece)
            if event is None and following is None and last:
                fault = TRUNCATED
            if fault is not None:
                faults[fault] += 1
            stop = following.end() if following else len(source)
        if event is not None:
            events.append(event)
        position = stop


def _decode(source: str, position: int) -> tuple[bytes | None, int | None]:
    """The event at a position as strict JSON, and where it ends; (None, None) if broken."""
    try:
        value, stop = _DECODER.raw_decode(source, position)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(value, dict):
        return None, stop
    plain = source[position:stop]
    if not plain.isprintable():
        # Whitespace between tokens may be anything, but inside strings control characters must be escaped.
        plain = re.sub(r"[\x00-\x1f]", " ", plain)
    return plain.encode("utf-8", errors="replace"), stop


def _repair(piece: str) -> tuple[bytes | None, str | None]:
    """The event with plain JSON values or with escaped quotes in its name; None if it stays unreadable."""
    event, _ = (
        _decode(plain_json(piece.encode()).decode(), 0) if len(piece) <= _LONGEST_EVENT else (None, None)
    )
    if event is not None:
        return event, None
    match = _NAME.search(piece) if len(piece) <= _LONGEST_EVENT else None
    if match is not None:
        name = _LONE_BACKSLASH.sub(r"\\\\", _LONE_QUOTE.sub(r'\\"', match[2]))
        event, _ = _decode(piece[: match.start(2)] + name + piece[match.end(2) :], 0)
        if event is not None:
            return event, REPAIRED
    return None, MALFORMED


def _end(match: re.Match[str] | None, position: int) -> int:
    return match.end() if match else position
