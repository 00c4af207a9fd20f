"""Where a step goes: its parts, which rank costs what, and how the ranks are spread."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.analysis import Analysis, RankBreakdown
from aorta.artefacts.page import HeatMap, RankLoss, StepPart
from aorta.report.selection import own_ms
from aorta.report.text import host, plain

MAX_HEAT_ROWS = 32
"""Rows of a heat map that stay readable; more ranks are binned."""
MAX_WORST = 6

WAITS = {
    "data_loading": "waiting for a slow loader",
    "compute": "waiting for slow compute",
    "host": "waiting for a slow host",
    "communication": "waiting after a late exchange",
    "own_host": "waiting while its own host works as long",
}
"""Waits for other ranks, by what those did: names of parts of the step. The last one is what of waits for a
slow host or compute the waiting rank's own host takes anyway.
"""

MAKES_WAIT = {"data_loading": "its loader", "compute": "its compute", "host": "its host"}
"""The same, seen from the rank that the others wait for."""


def mean_parts(analysis: Analysis) -> dict[str, float | None]:
    """Means over ranks of each part and of the step, in ms, by field of `RankBreakdown`; empty without ranks.

    A part is None where no rank measured it.
    """
    rows = analysis.breakdown.per_rank
    if not rows:
        return {}
    fields = (
        "step_ms", "compute_ms", "exposed_comm_ms", "exposed_copy_ms", "data_wait_ms", "host_ms",
        "unclassified_ms",
    )  # fmt: skip
    means: dict[str, float | None] = {}
    for field in fields:
        known = [value for row in rows if (value := getattr(row, field)) is not None]
        # A rank that did not measure copies has them in its host part: the sum over parts stays the step.
        means[field] = sum(known) / len(rows) if known else None
    return means


def charged(analysis: Analysis) -> bool:
    """Whether waits were charged to ranks at all; without that, no charge does not mean no wait."""
    return any(row.wait_ms is not None for row in analysis.breakdown.per_rank)


def step_parts(analysis: Analysis) -> list[StepPart]:
    """The mean step over ranks as parts that sum to it; empty without a breakdown.

    Exposed communication is told apart into waits by what the late rank was doing, and the rest: charges are
    sums over the waiting ranks, so that over the number of ranks they are parts of the mean step. What of
    them the waiting ranks' own hosts take anyway is a part of its own.
    """
    means = mean_parts(analysis)
    step = means.get("step_ms")
    if not step:
        return []
    waits: dict[str, float] = defaultdict(float)
    for item in analysis.blame:
        waits[item.cause] += item.lost_ms_per_step / len(analysis.breakdown.per_rank)
    rest = (means["exposed_comm_ms"] or 0.0) - sum(waits.values())
    own = own_host_wait_ms(analysis.breakdown.per_rank)
    for cause in ("host", "compute"):
        taken = min(own - waits["own_host"], waits[cause])
        waits[cause] -= taken
        waits["own_host"] += taken
    name = "exposed transfer" if charged(analysis) else "exposed communication"
    found: list[tuple[str, str, float | None]] = [("compute", "compute", means["compute_ms"])]
    found.append(("exposed_comm", name, max(rest, 0.0)))
    found += [
        (f"wait_{cause}", WAITS.get(cause, f"waiting: {plain(cause)}"), waits[cause])
        for cause in sorted(waits, key=lambda cause: -waits[cause])
        if waits[cause] > 0
    ]
    found.append(("exposed_copy", "exposed copy", means["exposed_copy_ms"]))
    found.append(("data_wait", "data wait", means["data_wait_ms"]))
    found.append(("host", "host", means["host_ms"]))
    if means["unclassified_ms"] is not None:
        found.append(("unclassified", "unclassified GPU time", means["unclassified_ms"]))
    return [
        StepPart(key=key, name=name, ms=ms, pct=None if ms is None else 100.0 * ms / step)
        for key, name, ms in found
    ]


def own_host_wait_ms(rows: Sequence[RankBreakdown]) -> float:
    """What of its waits for others a rank's own host takes anyway, mean over ranks; 0 where not known."""
    return sum(row.own_host_wait_ms or 0.0 for row in rows) / len(rows) if rows else 0.0


@dataclass(frozen=True, slots=True)
class _Charges:
    """Waits charged to each rank, ms a step that a rank waiting for it loses, mean over the others."""

    by_rank: Mapping[int, Mapping[str, float]]

    def of(self, rank: int, cause: str) -> float:
        return self.by_rank.get(rank, {}).get(cause, 0.0)

    def total(self, rank: int) -> float:
        return sum(self.by_rank.get(rank, {}).values())


def _charges(analysis: Analysis) -> _Charges:
    others = max(len(analysis.breakdown.per_rank) - 1, 1)
    by_rank: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for item in analysis.blame:
        by_rank[item.rank][item.cause] += item.lost_ms_per_step / others
    return _Charges({rank: dict(causes) for rank, causes in by_rank.items()})


def heat_map(analysis: Analysis) -> HeatMap | None:
    """Rank × cause, % of the mean step; None without a breakdown.

    More than `MAX_HEAT_ROWS` ranks are binned by node, or by several neighbouring nodes, and a cell is that
    of the worst rank in it: a mean would hide the one slow rank of many.
    """
    rows = sorted(analysis.breakdown.per_rank, key=lambda row: row.rank)
    step = mean_parts(analysis).get("step_ms")
    if not step:
        return None
    own = [("data wait", "data_wait_ms"), ("host", "host_ms"), ("exposed comm", "exposed_comm_ms")]
    if any(row.exposed_copy_ms is not None for row in rows):
        own.append(("exposed copy", "exposed_copy_ms"))
    columns = [name for name, _ in own]
    table = [[_cell(getattr(row, field)) for row in rows] for _, field in own]
    if len(rows) > 1 and charged(analysis):
        charges = _charges(analysis)
        for cause, name in MAKES_WAIT.items():
            columns.append(name)
            table.append([charges.of(row.rank, cause) for row in rows])
    values = 100.0 * np.array(table, dtype=np.float64).T / step
    bins, names, note = _bins(rows)
    if taken := own_host_wait_ms(rows):
        own_hosts = f"waits of {100 * taken / step:.0f} % own hosts take anyway"
        note = f"{note or '% of the mean step'}; {own_hosts}"
    return HeatMap(
        columns=columns,
        groups=[len(own), len(columns) - len(own)],
        rows=names,
        values=[[_known(value) for value in _worst(values[start:end])] for start, end in bins],
        ranks_a_row=max(end - start for start, end in bins),
        note=note,
    )


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
    return bins, names, f"{len(rows):,} ranks: a row is the worst rank of {group}, cell by cell"


def _rank_name(row: RankBreakdown, several: bool) -> str:
    return f"rank {row.rank}" + (f" · {host(row.host, 14)}" if several and row.host else "")


_PARTS = (
    ("compute_ms", "compute"),
    ("data_wait_ms", "data loading"),
    ("host_ms", "host"),
    ("exposed_copy_ms", "copies"),
)
_LEAST = 0.05
_CAUSES = {"data_loading": "data loading"}


def worst_ranks(analysis: Analysis, limit: int = MAX_WORST) -> tuple[list[RankLoss], int]:
    """The ranks that the others wait for most, otherwise those with the longest own time, worst first.

    Returns:
        At most `limit` of them, and how many cost any time: 0.05 ms a step or more.
    """
    rows = analysis.breakdown.per_rank
    if len(rows) < 2:
        return [], 0
    medians = {field: _median(rows, field) for field, _ in _PARTS}
    middle = float(np.median([own_ms(row) for row in rows]))
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
    return float(np.median(known)) if known else 0.0


def _mostly(row: RankBreakdown, charges: _Charges | None, medians: Mapping[str, float]) -> str:
    if charges is not None:
        causes = charges.by_rank.get(row.rank, {})
        cause = max(causes, key=lambda name: causes[name])
        return _CAUSES.get(cause, cause)
    above = {name: (getattr(row, field) or 0.0) - medians[field] for field, name in _PARTS}
    return max(above, key=lambda name: above[name])


SPREAD = (
    ("step", "step_ms"),
    ("own time", None),
    ("compute", "compute_ms"),
    ("exposed communication", "exposed_comm_ms"),
    ("data wait", "data_wait_ms"),
    ("host", "host_ms"),
)
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
"""Of the spread over ranks: lowest, 5 %, median, 95 %, highest."""


def spread(rows: Sequence[RankBreakdown]) -> list[tuple[str, list[float]]]:
    """Quantiles over ranks, in ms a step: names and the values of `QUANTILES`; empty without ranks."""
    if not rows:
        return []
    found = []
    for name, field in SPREAD:
        values = [own_ms(row) if field is None else getattr(row, field) for row in rows]
        found.append((name, [float(value) for value in np.quantile(values, QUANTILES)]))
    return found
