"""Finds where the training thread is in a part of the step, and how much longer than on other ranks.

The shares are shares of the time that samples stand for, so each has the error of a count. A place that was
found fewer than `FEWEST` times is not named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from aorta.averages import median

if TYPE_CHECKING:
    from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction

FEWEST = 4
"""Fewest samples from which a place is named."""
SCRIPT = "<module>"
"""The code of a file outside of every function."""


class FindingPlace(Struct, frozen=True):
    """A place, in the ranks that a finding names."""

    function: str
    file: str
    line: int
    share: float
    """Share of the steps of the rank that is there longest, 0 to 1."""
    longer: float | None
    """Share minus the median share of the other ranks. None if there are no others."""


def where(
    records: Mapping[int, InstrumentRecord], ranks: Sequence[int], parts: Sequence[str]
) -> FindingPlace | None:
    """Returns the place that takes the ranks longest in these parts of the step, compared with other ranks.

    Args:
        records: by rank.
        ranks: that a finding names. Empty means all.
        parts: of `aorta.artefacts.instrument_record.PARTS`.
    """
    named = [rank for rank in (ranks or records) if rank in records]
    others = [rank for rank in records if rank not in named]
    best: FindingPlace | None = None
    for rank in named:
        for place in _told_apart(records[rank], parts):
            share = _share(records[rank], place)
            elsewhere = [_share_of(records[other], place, parts) for other in others]
            longer = share - median(elsewhere) if elsewhere else None
            found = FindingPlace(place.function, place.file, place.line, share, longer)
            if best is None or _weight(found) > _weight(best):
                best = found
    return best


def no_loader(records: Mapping[int, InstrumentRecord]) -> str | None:
    """Returns that hooks saw no loader, and where loading may be. None if they saw one, or there are none."""
    hooked = [one for one in records.values() if one.note is None]
    # A rank that was killed at its start may not have said what it saw.
    if not all(one.seen for one in hooked) or not hooked or any("loader" in one.seen for one in hooked):
        return None
    place = where(records, (), ("other",))
    most = f", most of it in {place.function}, {PurePath(place.file).name} line {place.line}" if place else ""
    return f"the program uses no DataLoader: loading, if any, is part of host work{most}"


def unseen_passes(records: Mapping[int, InstrumentRecord]) -> tuple[list[int], str] | None:
    """Returns the ranks whose hooks saw no forward or no backward pass, and what was not seen. None means no
    such.

    The time of an unseen pass shows as host work, which is then not told apart from it.
    """
    found: dict[int, str] = {}
    for rank, one in records.items():
        if one.note is not None or "optimizer" not in one.seen or "graph" in one.seen:
            continue
        absent = [name for name in ("forward", "backward") if name not in one.seen]
        if absent:
            found[rank] = " and ".join(absent)
    if not found:
        return None
    what = max(found.values(), key=len)
    return sorted(found), f"the hooks saw no {what} pass: its time counts as host work"


def _weight(found: FindingPlace) -> float:
    return found.share if found.longer is None else found.longer


def _told_apart(record: InstrumentRecord, parts: Sequence[str]) -> list[SampledFunction]:
    """Returns the program's own places; of a script's one call, those of the package that it calls."""
    usable = [place for place in record.places if place.part in parts and place.samples >= FEWEST]
    own = [place for place in usable if not place.package]
    packages = [place for place in usable if place.package]
    kept = []
    for place in own:
        inside = sum(_weight_of(one) for one in packages if one.part == place.part)
        if place.function != SCRIPT or 2 * inside < _weight_of(place):
            kept.append(place)
    return kept or packages


def _share(record: InstrumentRecord, place: SampledFunction) -> float:
    return _weight_of(place) / _whole(record)


def _share_of(record: InstrumentRecord, like: SampledFunction, parts: Sequence[str]) -> float:
    weight = sum(
        _weight_of(place)
        for place in record.places
        if (place.function, place.file, place.package) == (like.function, like.file, like.package)
        and place.part in parts
    )
    return weight / _whole(record)


def _weight_of(place: SampledFunction) -> float:
    """Returns the time that samples of a place stand for; their number, where that time was not recorded."""
    return place.samples if place.time_ms is None else place.time_ms


def _whole(record: InstrumentRecord) -> float:
    """Returns the time that all samples stand for; their number, where that time was not recorded."""
    parts: Mapping[str, float] = record.samples if record.sampled_ms is None else record.sampled_ms
    return sum(parts.values()) or 1.0
