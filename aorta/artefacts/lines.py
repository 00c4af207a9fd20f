"""Lines of text from others, taken apart one by one: a broken one costs itself. Standard library only."""

from __future__ import annotations

import csv

_MOST = 2**63
"""Type of the integers in tables."""


def cells_of(line: str, *, skip_initial_space: bool = False) -> list[str] | None:
    """The cells of one line of CSV; None where it is none, such as with a cell above the csv module's limit.

    NULs are dropped: files that a crash cut off contain them, and csv refuses them before Python 3.11.
    """
    try:
        return next(csv.reader([line.replace("\0", "")], skipinitialspace=skip_initial_space), [])
    except csv.Error:
        return None


def whole_number(text: str) -> int | None:
    """The integer from 0 to 2**63 - 1 that `text` is in ASCII digits; None for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MOST))):
        return None
    number = int(text)
    return number if number < _MOST else None
