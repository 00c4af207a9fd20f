"""Which ranks are shown where not all fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aorta.artefacts.analysis import RankBreakdown

MAX_RANKS = 16
"""Bars that stay readable in one panel."""


def own_ms(row: RankBreakdown) -> float:
    """The part of a step that the rank makes itself, in ms: the rest waits for, or talks to, other ranks.

    In a synchronous job all ranks have the same step time; the one that the others wait for has the longest
    own time.
    """
    return row.step_ms - row.exposed_comm_ms


def shown_ranks(
    rows: Sequence[RankBreakdown], named: Collection[int], limit: int = MAX_RANKS
) -> tuple[list[RankBreakdown], str]:
    """At most `limit` of `rows` by rank, and a note saying which (empty where all are shown).

    Args:
        rows: one a rank.
        named: ranks of the verdict, which are shown first of all (up to a quarter of `limit`).
        limit: at least 4.

    The rest is taken in equal parts from the longest, the middle and the shortest own time.
    """
    ordered = sorted(rows, key=lambda row: row.rank)
    if len(ordered) <= limit:
        return ordered, ""
    by_own = sorted(ordered, key=lambda row: (-own_ms(row), row.rank))
    chosen = [row for row in ordered if row.rank in named][: limit // 4]
    picked = {row.rank for row in chosen}
    left = [row for row in by_own if row.rank not in picked]
    each, extra = divmod(limit - len(chosen), 3)
    middle = (len(left) - each) // 2
    wanted = [*left[: each + extra], *left[middle : middle + each], *left[-each:]]
    rank_rows = {row.rank: row for row in [*chosen, *wanted]}
    verdict = "the verdict's; " if chosen else ""
    note = f"{len(rank_rows)} of {len(rows)} ranks: {verdict}longest, middle, shortest own time"
    return [rank_rows[rank] for rank in sorted(rank_rows)], note
