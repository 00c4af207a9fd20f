"""Turns values into words: numbers with units, and text from data on one line.

Absent is `—`, in every table and sentence; a measured zero is `0`.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import PurePath
from typing import Any

from aorta.artefacts.analysis import Speedup
from aorta.artefacts.clean import plain
from aorta.report.labels import LABELS, TWO_RANKS

ABSENT = "—"


_UNIT = re.compile(r"_(ms|pct)(?=_|$)")
_FILES = 2
"""Most files of one folder that are named each."""
WIDTH = 100
"""Columns of a text report."""


def short(value: object, limit: int) -> str:
    """`plain` text of at most `limit` characters, its middle left out where it is longer."""
    text = plain(value)
    return text if len(text) <= limit else text[: (limit - 1) // 2] + "…" + text[-(limit // 2) :]


def host(name: object, limit: int) -> str:
    """A host's name without its domain, `short`; an address stays whole."""
    text = plain(name)
    first = text.partition(".")[0]
    return short(text if not first or first.isdigit() else first, limit)


def number(value: float | None) -> str:
    """About three significant digits with thousands separated; `—` for None."""
    if value is None:
        return ABSENT
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1 or size == 0:
        return f"{value:.2f}" if size else "0"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


def quantity(value: float | None, unit: str) -> str:
    """A number and its unit, `—` for None: `12.3 ms`, `71.0 %`."""
    names = {
        "pct": "%",
        "percent": "%",
        "ratio": "",
        "% of step": "% of the step",
        "% of time": "% of the measured time",
    }
    return ABSENT if value is None else f"{number(value)} {names.get(unit, unit)}".rstrip()


def share(part: float | None, whole: float) -> str:
    """`part` of `whole` in percent, one decimal; `—` where there is no part or no whole."""
    return ABSENT if part is None or whole <= 0 else f"{100 * part / whole:.1f} %"


def gain(speedup: Speedup | None) -> str:
    """A predicted speed-up: `1.22× to 1.48×`, `at most 1.50×` where only that is known, `—` for None.

    Without an expected value, what is gained by removing less than all of the cause is not known.
    """
    if speedup is None:
        return ABSENT
    if speedup.expected is None:
        return f"at most {times(speedup.high)}"
    return between(speedup.low, speedup.high)


def between(low: float, high: float) -> str:
    """`1.22× to 1.48×`, or one number where both are written alike."""
    first, last = times(low), times(high)
    return first if first == last else f"{first} to {last}"


def times(factor: float) -> str:
    """A speed-up: two decimals below 2, one below 10, none above."""
    return f"{factor:.{2 if factor < 2 else 1 if factor < 10 else 0}f}×"


def listing(items: list[int] | list[str], limit: int = 8) -> str:
    """Items joined by commas, runs of integers shortened (`0-3, 8`); beyond `limit` pieces counted."""
    pieces: list[str] = []
    if items and all(isinstance(item, int) for item in items):
        numbers = sorted({int(item) for item in items})
        start = last = numbers[0]
        for item in [*numbers[1:], None]:
            if item is not None and item == last + 1:
                last = item
                continue
            pieces.append(str(start) if start == last else f"{start}-{last}")
            if item is not None:
                start = last = item
    else:
        pieces = [plain(item) for item in items]
    hidden = len(pieces) - limit
    return ", ".join(pieces[:limit]) + (f", and {hidden} more" if hidden > 0 else "")


def ranks(named: list[int]) -> str:
    """`rank 1`, `ranks 0-3`; all where none is named."""
    return f"rank{'s' if len(named) != 1 else ''} {listing(named)}" if named else "all ranks"


def evidence(facts: dict[str, Any], *, two: bool = False) -> list[str]:
    """Returns one `name: value` per fact: names in words, long lists cut with their length.

    Args:
        facts: of a finding.
        two: the job has two ranks.
    """
    return [
        f"{TWO_RANKS[name][0]}: {_measured(value, TWO_RANKS[name][1])}"
        if two and name in TWO_RANKS
        else _named(name, _by_folder(value) if name == "files" else value, between=": ")
        for name, value in facts.items()
    ]


def _named(name: object, value: Any, *, between: str) -> str:
    """`compute: 12.2 ms`: the fact's label, and its value with a unit; without a label, its name tells it."""
    if (label := LABELS.get(str(name))) is not None:
        return f"{label[0]}{between}{_measured(value, label[1])}"
    unit = None if "." in str(name) else _UNIT.search(str(name))  # a configuration's key stays as it is
    known = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    if unit is None or not known:
        return f"{_words(name)}{between}{_fact(value)}"
    bare = str(name)[: unit.start()] + str(name)[unit.end() :]
    return f"{_words(bare)}{between}{quantity(value, unit[1])}"


def _measured(value: Any, unit: str) -> str:
    """The value of a labelled fact."""
    if isinstance(value, dict):
        return ", ".join(f"{plain(name)} {_measured(item, unit)}" for name, item in value.items()) or "none"
    if not unit or isinstance(value, bool) or not isinstance(value, (int, float)):
        return _fact(value)
    if unit == "bytes":
        return quantity(value / 1e6, "MB")
    return (
        f"{number(value)}×"
        if unit == "×"
        else share(value, 1.0)
        if unit == "share"
        else quantity(value, unit)
    )


def _by_folder(files: list[str]) -> list[str]:
    """Three files or more of one folder are its name and their number: those of all ranks are told by it."""
    folders = Counter(str(PurePath(file).parent) for file in files)
    many = {folder for folder, count in folders.items() if count > _FILES}
    named = [file for file in files if str(PurePath(file).parent) not in many]
    return [*(f"{folder}/ ({folders[folder]} files)" for folder in folders if folder in many), *named]


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        more = f", and {len(value) - 8} more" if len(value) > 8 else ""
        return ", ".join(_fact(item) for item in value[:8]) + more if value else "none"
    if isinstance(value, dict):
        return ", ".join(_named(key, item, between=" ") for key, item in value.items()) or "none"
    words = {None: ABSENT, True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else plain(value)


def _words(name: object) -> str:
    text = plain(name)
    # The key of a configuration is shown as it is written there.
    return text if "." in text else text.replace("_", " ")


def wrap(value: object, indent: int = 0, first: str = "") -> str:
    """`plain` text in lines of at most 100 columns, indented by `indent`; `first` opens the first line."""
    return textwrap.fill(
        plain(value),
        width=WIDTH,
        initial_indent=" " * indent + first,
        subsequent_indent=" " * (indent + len(first)),
        break_on_hyphens=False,
    )
