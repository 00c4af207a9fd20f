"""Finds where the time in a step goes: its parts, which rank costs what, and how the ranks are spread."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.clean import plain
from aorta.artefacts.measured import Blame, RankBreakdown
from aorta.artefacts.page import HeatMap, RankLoss, StepPart
from aorta.averages import median_low
from aorta.report.palette import LEAST_PCT, PARTS, WAITS
from aorta.report.selection import own_ms
from aorta.report.text import host

MAX_HEAT_ROWS = 32
"""Maximum number of rows of a heat map; more ranks are binned."""
MAX_WORST = 6
OTHER = "other"

MAKES_WAIT = {"data_loading": "loader", "compute": "compute", "host": "host work"}
"""Causes of waits, seen from the rank that the others wait for."""
HEAT_GROUPS = ("in the rank's own step", "makes other ranks wait")
"""Heads of the map's two groups of columns."""
HEAT_NOTE = (
    "% of the mean step; compute is not shown; grey: caused by other ranks\n"
    "right of the line: time lost on the other ranks"
)
"""Small print of the map."""


def mean_parts(analysis: Analysis) -> dict[str, float | None]:
    """Means over ranks of the step and of each part, in ms, by field of `RankBreakdown`; empty without ranks.

    A part is None where no rank measured it.
    """
    rows = analysis.breakdown.per_rank
    if not rows:
        return {}
    means: dict[str, float | None] = {}
    for field in ("step_ms", *(part.field for part in PARTS)):
        known = [value for row in rows if (value := getattr(row, field)) is not None]
        # A rank that did not measure copies has them in its host part: the sum over parts stays the step.
        means[field] = sum(known) / len(rows) if known else None
    return means


def charged(analysis: Analysis) -> bool:
    """True if waits were charged to ranks at all; without that, no charge does not mean no wait."""
    return any(row.wait_ms is not None for row in analysis.breakdown.per_rank)


class ChargedWaits(NamedTuple):
    """The charged waits, without the part that would remain."""

    charges: list[Blame]
    own_host_ms: float
    """Sum over the waiting ranks of the part that would remain, because their own host work takes as long."""
    kept: float
    """The share of the measured `own_host_wait_ms` that this is."""


def waits(analysis: Analysis) -> ChargedWaits:
    """The waits by the rank that caused them, less the part that would remain without that rank.

    The part that would remain is taken from waits for hosts first, then from waits for compute.
    """
    total: dict[str, float] = defaultdict(float)
    for item in analysis.blame:
        total[item.cause] += item.lost_ms_per_step
    own = sum(row.own_host_wait_ms or 0.0 for row in analysis.breakdown.per_rank)
    left, factors = own, {}
    for cause in ("host", "compute"):
        taken = min(left, total.get(cause, 0.0))
        left -= taken
        factors[cause] = 1.0 - taken / total[cause] if taken else 1.0
    charges = [
        structs.replace(item, lost_ms_per_step=item.lost_ms_per_step * factors.get(item.cause, 1.0))
        for item in analysis.blame
    ]
    return ChargedWaits(charges, own - left, (own - left) / own if own else 0.0)


def step_parts(analysis: Analysis) -> list[StepPart]:
    """The mean step over ranks as parts that sum to it; empty without a breakdown.

    Exposed communication is split into waits, by what the late rank was doing, and the rest. Charges are sums
    over the waiting ranks; divided by the number of ranks they are parts of the mean step.
    """
    means = mean_parts(analysis)
    step = means.get("step_ms")
    if not step:
        return []
    count, found = len(analysis.breakdown.per_rank), waits(analysis)
    by_cause: dict[str, float] = defaultdict(float)
    for item in found.charges:
        by_cause[item.cause] += item.lost_ms_per_step / count
    by_cause["own_host"] += found.own_host_ms / count
    rest = max((means["exposed_comm_ms"] or 0.0) - sum(by_cause.values()), 0.0)
    parts: list[tuple[str, str, float | None]] = []
    for part in PARTS:
        if part.key == "exposed_comm":
            parts.append((part.key, "exposed transfer" if charged(analysis) else part.name, rest))
            parts += [
                (f"wait_{cause}", WAITS[cause][0] if cause in WAITS else f"waiting: {plain(cause)}", ms)
                for cause, ms in sorted(by_cause.items(), key=lambda item: -item[1])
                if ms > 0
            ]
        elif part.key == "exposed_copy" or means[part.field] is not None:
            parts.append((part.key, part.name, means[part.field]))
    return [
        StepPart(key=key, name=name, ms=ms, pct=None if ms is None else 100.0 * ms / step)
        for key, name, ms in parts
    ]


def shown_parts(parts: Sequence[StepPart]) -> list[StepPart]:
    """The measured parts; several parts below 0.5 % of the step are summed as `OTHER`."""
    known = [part for part in parts if part.ms is not None and part.pct is not None]
    large = [part for part in known if (part.pct or 0.0) >= LEAST_PCT]
    small = [part for part in known if part.ms and (part.pct or 0.0) < LEAST_PCT]
    ms, pct = sum(part.ms or 0.0 for part in small), sum(part.pct or 0.0 for part in small)
    if len(small) == 1:
        return [*large, small[0]]
    return [*large, StepPart(key="other", name=OTHER, ms=ms, pct=pct)] if ms else large


def loading_words(parts: Sequence[StepPart]) -> str:
    """Says that data loading has two parts in the mean step, and their sum; empty where one is not shown."""
    found = {part.key: part for part in shown_parts(parts)}
    own, wait = found.get("data_wait"), found.get("wait_data_loading")
    if own is None or wait is None or own.pct is None or wait.pct is None:
        return ""
    one, other = round(own.pct), round(wait.pct)
    return (
        f"data loading costs {one + other} % in total: {one} % data wait + {other} % "
        "waiting for another rank's loader"
    )


class _Charges(Struct, frozen=True):
    """Waits charged to each rank: ms per step that a rank waiting for it loses, mean over the others."""

    by_rank: Mapping[int, Mapping[str, float]]

    def of(self, rank: int, cause: str) -> float:
        return self.by_rank.get(rank, {}).get(cause, 0.0)

    def total(self, rank: int) -> float:
        return sum(self.by_rank.get(rank, {}).values())


def _charges(analysis: Analysis) -> _Charges:
    others = max(len(analysis.breakdown.per_rank) - 1, 1)
    by_rank: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for item in waits(analysis).charges:
        by_rank[item.rank][item.cause] += item.lost_ms_per_step / others
    return _Charges({rank: dict(causes) for rank, causes in by_rank.items()})


def heat_map(analysis: Analysis) -> HeatMap | None:
    """Returns rank × cause in % of the mean step; None without a breakdown, or for a single rank.

    More than `MAX_HEAT_ROWS` ranks are binned by node, or by several neighbouring nodes. A cell shows the
    worst rank of its bin, because a mean would hide one slow rank among many.
    """
    rows = sorted(analysis.breakdown.per_rank, key=lambda row: row.rank)
    step = mean_parts(analysis).get("step_ms")
    if not step or len(rows) < 2:
        return None
    kept = waits(analysis).kept
    late = [None if (ms := row.own_host_wait_ms) is None else kept * ms for row in rows]
    mine: _Columns = [(part.short, [_cell(getattr(row, part.field)) for row in rows]) for part in PARTS[1:]]
    if kept:
        exposed = [row.exposed_comm_ms - (ms or 0.0) for row, ms in zip(rows, late, strict=True)]
        mine[0] = (mine[0][0], exposed)
        mine.insert(1, ("wait, own work late too", [_cell(ms) for ms in late]))
    charges: _Columns = []
    if len(rows) > 1 and charged(analysis):
        found = _charges(analysis)
        charges = [(name, [found.of(row.rank, cause) for row in rows]) for cause, name in MAKES_WAIT.items()]
    own, charges = ([item for item in group if _worth_showing(item[1], step)] for group in (mine, charges))
    if not own and not charges:
        return None
    values = 100.0 * np.array([cells for _, cells in (*own, *charges)], dtype=np.float64).T / step
    bins, names, note = _bins(rows)
    return HeatMap(
        columns=[name for name, _ in (*own, *charges)],
        groups=[len(own), len(charges)],
        rows=names,
        values=[[_known(value) for value in _worst(values[start:end])] for start, end in bins],
        ranks_a_row=max(end - start for start, end in bins),
        note=note,
    )


def heat_columns(found: HeatMap) -> list[str]:
    """Returns the heads of the map's columns; the head of its group ends in `for its loader`."""
    own, _ = found.groups
    return [name if at < own else f"for its {name}" for at, name in enumerate(found.columns)]


_Columns = list[tuple[str, list[float]]]


def _worth_showing(cells: Sequence[float], step: float) -> bool:
    return any(100.0 * cell / step >= LEAST_PCT for cell in cells)


def _cell(value: float | None) -> float:
    return np.nan if value is None else value


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _worst(values: NDArray[np.float64]) -> list[float]:
    """The largest of each column, NaN where it is nothing but NaN."""
    return [float(np.nanmax(column)) if not np.isnan(column).all() else np.nan for column in values.T]


def _bins(rows: Sequence[RankBreakdown]) -> tuple[list[tuple[int, int]], list[str], str]:
    """Index ranges of `rows` (by rank) that share a row of the map, their names, and what a row is."""
    places = [(index, index + 1) for index in range(len(rows))]
    several = len({row.host for row in rows}) > 1
    if len(rows) <= MAX_HEAT_ROWS:
        return places, [_rank_name(row, several) for row in rows], ""
    unit = "rank"
    if several and all(row.host for row in rows):
        cuts = [0, *(i for i in range(1, len(rows)) if rows[i].host != rows[i - 1].host), len(rows)]
        places, unit = list(itertools.pairwise(cuts)), "node"
    each = -(-len(places) // MAX_HEAT_ROWS)
    bins = [
        (places[first][0], places[min(first + each, len(places)) - 1][1])
        for first in range(0, len(places), each)
    ]
    names = []
    for start, end in bins:
        first, last = rows[start], rows[end - 1]
        if unit == "node":
            one, other = host(first.host, 14), host(last.host, 14)
            names.append(one if each == 1 else f"{one} … {other}" if one != other else one)
        else:
            names.append(f"ranks {first.rank}–{last.rank}")
    group = f"a {unit}" if each == 1 else f"{each} {unit}s"
    return bins, names, f"{len(rows):,} ranks: each cell shows the worst rank of {group}"


def _rank_name(row: RankBreakdown, several: bool) -> str:
    return f"rank {row.rank}" + (f" · {host(row.host, 14)}" if several and row.host else "")


_OWN = {
    "compute_ms": "compute", "data_wait_ms": "data loading",
    "host_ms": "host work", "exposed_copy_ms": "copies",
}  # fmt: skip
_LEAST = 0.05
_CAUSES = {"data_loading": "data loading", "host": "host work"}


def worst_ranks(analysis: Analysis, limit: int = MAX_WORST) -> tuple[list[RankLoss], int]:
    """The ranks that the others wait for most, otherwise those with the longest own time, worst first.

    The median rank is the lower one of an even number, as for lateness: of two ranks it is the other one.

    Returns:
        At most `limit` of them, and how many cost any time: 0.05 ms per step or more.
    """
    rows = analysis.breakdown.per_rank
    if len(rows) < 2:
        return [], 0
    medians = {field: _median(rows, field) for field in _OWN}
    middle = median_low([own_ms(row) for row in rows])
    charges = _charges(analysis) if charged(analysis) else None

    def loss(row: RankBreakdown) -> float:
        return charges.total(row.rank) if charges is not None else own_ms(row) - middle

    costly = sorted((row for row in rows if loss(row) >= _LEAST), key=lambda row: (-loss(row), row.rank))
    found = [
        RankLoss(
            rank=row.rank,
            host=row.host,
            own_ms=own_ms(row),
            above_median_ms=own_ms(row) - middle,
            charged_ms=None if charges is None else charges.total(row.rank),
            mostly=_mostly(row, charges, medians),
        )
        for row in costly[:limit]
    ]
    return found, len(costly)


def _median(rows: Sequence[RankBreakdown], field: str) -> float:
    known = [value for row in rows if (value := getattr(row, field)) is not None]
    return median_low(known) if known else 0.0


def _mostly(row: RankBreakdown, charges: _Charges | None, medians: Mapping[str, float]) -> str:
    if charges is not None:
        causes = charges.by_rank.get(row.rank, {})
        cause = max(causes, key=lambda name: causes[name])
        return _CAUSES.get(cause, cause)
    above = {name: (getattr(row, field) or 0.0) - medians[field] for field, name in _OWN.items()}
    return max(above, key=lambda name: above[name])


SPREAD = (("step", "step_ms"), ("own time", None), *((part.name, part.field) for part in PARTS))
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
"""Quantiles of the spread over ranks: lowest, 5 %, median, 95 %, highest."""


def spread(rows: Sequence[RankBreakdown]) -> list[tuple[str, list[float]]]:
    """Quantiles over ranks, in ms per step: names and the values of `QUANTILES`; empty without ranks."""
    if not rows:
        return []
    found = []
    for name, field in SPREAD:
        values = [own_ms(row) if field is None else getattr(row, field) for row in rows]
        known = [value for value in values if value is not None]
        if any(known):
            found.append((name, [float(value) for value in np.quantile(known, QUANTILES)]))
    return found
