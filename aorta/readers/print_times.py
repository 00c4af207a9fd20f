"""Reads the times that `date` and tools print as lines of text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from aorta.units import NS_PER_S

_DIGITS = {10: 9, 13: 6, 16: 3, 19: 0}
"""Number of digits of an epoch time to the power of ten that makes it ns."""
_EPOCH = re.compile(r"\s*(\d{10,19})(?:\.(\d{1,9}))?\s*")
_ISO = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"\s*(Z|UTC|GMT|[+-]\d\d:?\d\d)?"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<h>\d{1,2}):(?P<m>\d\d):(?P<s>\d\d)\s*(?P<half>AM|PM)?\s*(?P<zone>[A-Z]{2,5}|[+-]\d{2,4})?"
_DATES = (
    re.compile(rf"\b(?P<month>{_MONTH})\s+(?P<day>\d{{1,2}})\s+{_CLOCK}\s+(?P<year>\d{{4}})\b"),
    re.compile(rf"\b(?P<day>\d{{1,2}})\s+(?P<month>{_MONTH})\s+(?P<year>\d{{4}}),?\s+{_CLOCK}"),
)
_UTC = ("Z", "UTC", "GMT")


@dataclass(frozen=True, slots=True)
class Moment:
    """A printed time."""

    wall_ns: int
    """Since the epoch; of a time without a zone as if it were UTC."""
    zoned: bool


def moment_of(line: str) -> Moment | None:
    """Returns the time that a line is or holds; None for any other line."""
    epoch = _EPOCH.fullmatch(line)
    if epoch:
        power = _DIGITS.get(len(epoch[1]))
        if power is None:
            return None
        part = int((epoch[2] or "").ljust(9, "0")[:9]) if power == 9 else 0
        return Moment(int(epoch[1]) * 10**power + part, zoned=True)
    iso = _ISO.search(line)
    if iso:
        year, month, day, hour, minute, second = (int(iso[at]) for at in range(1, 7))
        return _moment((year, month, day, hour, minute, second), iso[7], iso[8])
    for pattern in _DATES:
        found = pattern.search(line)
        if found:
            hour = int(found["h"]) % 12 + 12 * (found["half"] == "PM") if found["half"] else int(found["h"])
            month = _MONTHS.index(found["month"]) + 1
            clock = hour, int(found["m"]), int(found["s"])
            return _moment((int(found["year"]), month, int(found["day"]), *clock), None, found["zone"])
    return None


def _moment(
    parts: tuple[int, int, int, int, int, int], fraction: str | None, zone: str | None
) -> Moment | None:
    try:
        moment = datetime(*parts, tzinfo=timezone.utc)
    except ValueError:
        return None
    ahead = _ahead(zone)
    if ahead is not None:
        moment -= ahead
    part = int((fraction or "").ljust(9, "0"))
    return Moment(int(moment.timestamp()) * NS_PER_S + part, zoned=ahead is not None)


def _ahead(zone: str | None) -> timedelta | None:
    """Returns how far a zone is ahead of UTC; None where it does not say so."""
    if zone in _UTC:
        return timedelta()
    if zone is None or zone[0] not in "+-":
        return None
    digits = zone[1:].replace(":", "").ljust(4, "0")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -ahead if zone[0] == "-" else ahead
