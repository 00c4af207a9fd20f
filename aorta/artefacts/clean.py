"""Text from anywhere made harmless for a terminal and for files in UTF-8. Standard library only."""

from __future__ import annotations

import os
import re
from pathlib import PurePath

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""C0 and C1 controls, line and paragraph separators, and what turns the direction of text."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def escaped(text: str | PurePath) -> str:
    """Return text that UTF-8 can hold: a byte that is none of it, such as in a file's name, is `\\xe9`."""
    return _SURROGATE.sub(_escape, os.fspath(text) if isinstance(text, PurePath) else text)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number - 0xDC00:02x}" if 0xDC80 <= number <= 0xDCFF else f"\\u{number:04x}"


def plain(value: object) -> str:
    """Return one line without control characters or direction overrides: safe to print on a terminal."""
    return _CONTROL.sub(" ", escaped(str(value))).strip()


def lines(value: object) -> str:
    """Return text of several lines, each of them safe to print on a terminal; tabs become spaces."""
    return "\n".join(_CONTROL.sub(" ", line) for line in escaped(str(value)).expandtabs().split("\n"))
