"""Finds which ranks are shown where not all fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from aorta.artefacts.measured import RankBreakdown

MAX_RANKS = 16
"""Bars that stay readable in one panel."""


def own_ms(row: RankBreakdown) -> float:
    """The part of a step that the rank makes itself, in ms: the rest waits for, or talks to, other ranks.

    In a synchronous job all ranks have the same step time; the one that the others wait for has the longest
    own time. Time that nothing shows may be either, and is left out.
    """
    return row.step_ms - row.exposed_comm_ms - (row.unseen_ms or 0.0)


def shown_ranks(
    rows: Sequence[RankBreakdown], named: Collection[int], limit: int = MAX_RANKS
) -> tuple[list[RankBreakdown], str]:
    """At most `limit` of `rows` by rank, as `choose` takes them by own time, and a note saying which."""
    picked, note = choose({row.rank: own_ms(row) for row in rows}, named, limit)
    by_rank = {row.rank: row for row in rows}
    return [by_rank[rank] for rank in picked], note


def choose(own: Mapping[int, float], named: Collection[int], limit: int) -> tuple[list[int], str]:
    """At most `limit` ranks, ascending, and a note saying which (empty where all are taken).

    Args:
        own: each rank's own time.
        named: ranks of the verdict, which are taken first of all (up to a quarter of `limit`).
        limit: at least 4.

    The rest is taken in equal parts from the longest, the middle and the shortest own time.
    """
    if len(own) <= limit:
        return sorted(own), ""
    by_own = sorted(own, key=lambda rank: (-own[rank], rank))
    chosen = sorted(set(named) & own.keys())[: limit // 4]
    left = [rank for rank in by_own if rank not in set(chosen)]
    each, extra = divmod(limit - len(chosen), 3)
    middle = max((len(left) - each) // 2, each + extra)
    wanted = [*left[: each + extra], *left[middle : middle + each], *left[-each:]]
    picked = sorted({*chosen, *wanted})
    verdict = "the verdict's; " if chosen else ""
    return picked, f"{len(picked):,} of {len(own):,} ranks: {verdict}longest, middle, shortest own time"
