"""Charges each rank's waits to their causes, and chooses the ranks to name."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec
from msgspec import Struct

from aorta.artefacts.measured import Blame, RankBreakdown
from aorta.artefacts.replayed import LatenessTable
from aorta.averages import median_low
from aorta.metrics.blame import BlameTable
from aorta.metrics.charges import MANY_RANKS, Cause, Charge
from aorta.units import NS_PER_MS

MOST_OF_CHARGE = 0.75
"""Ranks stand out if they are charged with at least this share of what chance would leave to the other
ranks.
"""
MOST_STEPS = 0.5
"""A rank that is late in at least this share of the steps is named, whatever the other ranks cost."""
TIMES_AS_OFTEN = 2
"""A rank stands out if it is late at least this many times as often as any other rank that is as late."""
EXPLAINED = 0.5
"""A rank's extra work explains the waits for it if it makes up at least this share of them."""
HARDLY = 0.1
"""A charge below this share of the costliest rank's charge does not show why a rank is late."""


class RankCosts(Struct, frozen=True):
    """One rank's mean step in ms: its own parts, and its exposed waits by the last rank and the cause."""

    rank: int
    step_ms: float
    compute_ms: float
    data_wait_ms: float
    host_ms: float
    copy_ms: float
    exposed_comm_ms: float
    """Exposed communication, the waits below included."""
    charged_ms: Mapping[Charge, float]
    host_work_ms: float | None = None
    """Time in which its host waited neither for its GPU nor for its loader. None if not in the traces."""

    def charged(self, *causes: Cause) -> float:
        """Waits for other ranks because of any of `causes`, ms."""
        return sum(lost for (_, cause), lost in self.charged_ms.items() if cause in causes)

    def takes_ms(self, cause: Cause) -> float:
        """Its own compute; or its host's work, which behind waits for others its GPU does not show."""
        if cause == "compute":
            return self.compute_ms
        return self.host_ms if self.host_work_ms is None else self.host_work_ms

    @property
    def own_host_wait_ms(self) -> float:
        """The part of its waits for other ranks' compute and host that its own host needs anyway.

        A host is not held up where its GPU is: it launches ahead into a queue. So a rank can gain at most the
        part of the step in which its host does not work, whichever rank comes last. While the GPU waits in a
        collective, its own launches come no sooner. 0 where the host's work is not known.
        """
        if self.host_work_ms is None:
            return 0.0
        free = max(self.step_ms - self.host_work_ms, 0.0)
        return max(self.charged("compute", "host") - free, 0.0)

    @property
    def lateness_ms(self) -> float:
        """Time that it loses to other ranks' compute and host beyond `own_host_wait_ms`."""
        return self.charged("compute", "host") - self.own_host_wait_ms

    @property
    def loading_ms(self) -> float:
        """Own loader wait, and waits for another rank's."""
        return self.data_wait_ms + self.charged("data_loading")

    @property
    def transfer_ms(self) -> float:
        """Exposed communication that is not a wait for another rank's loader, compute or host."""
        return max(self.exposed_comm_ms - self.charged("data_loading", "compute", "host"), 0.0)


def rank_costs(rows: Iterable[RankBreakdown], blame: BlameTable | None) -> list[RankCosts]:
    """The costs of each rank, by rank; without `blame` the waits stay in communication."""
    costs = []
    for row in rows:
        charges = blame.charges.get(row.rank, {}) if blame else {}
        steps = blame.steps if blame else 1
        costs.append(
            RankCosts(
                rank=row.rank,
                step_ms=row.step_ms,
                compute_ms=row.compute_ms,
                data_wait_ms=row.data_wait_ms,
                host_ms=row.host_ms,
                copy_ms=row.exposed_copy_ms or 0.0,
                exposed_comm_ms=row.exposed_comm_ms,
                charged_ms={charge: lost / steps / NS_PER_MS for charge, lost in charges.items()},
                host_work_ms=row.host_work_ms,
            )
        )
    return costs


def with_own_waits(rows: Sequence[RankBreakdown], costs: Sequence[RankCosts]) -> list[RankBreakdown]:
    """Returns the rows with the part of each rank's waits that its own host needs, where that is known."""
    return [
        row
        if row.host_work_ms is None or row.wait_ms is None
        else msgspec.structs.replace(row, own_host_wait_ms=item.own_host_wait_ms)
        for row, item in zip(rows, costs, strict=True)
    ]


def blame_list(blame: BlameTable | None) -> list[Blame]:
    """Time per step that each rank costs the others, by cause and summed over them; the largest first."""
    if blame is None or not blame.steps:
        return []
    sums: dict[Charge, int] = defaultdict(int)
    for charges in blame.charges.values():
        for charge, lost in charges.items():
            if charge[0] != MANY_RANKS:
                sums[charge] += lost
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [
        Blame(rank=rank, cause=cause, lost_ms_per_step=lost / blame.steps / NS_PER_MS)
        for (rank, cause), lost in ordered
    ]


def slow_loaders(costs: list[RankCosts], share: float, threshold_pct: float) -> list[int]:
    """The ranks whose own loader wait is at least `share` of the longest, or itself above the threshold.

    Empty where that is every rank.
    """
    worst = max((item.data_wait_ms for item in costs), default=0.0)
    slow = [
        item.rank
        for item in costs
        if item.data_wait_ms >= share * worst or 100.0 * item.data_wait_ms > threshold_pct * item.step_ms
    ]
    return _named(slow, costs)


def waited_for(costs: list[RankCosts], share: float, late: LatenessTable | None) -> list[int]:
    """The ranks whose compute or host work the others wait for, if they stand out; empty if none does.

    A rank is chosen if it is charged with `share` or more of the costliest rank's charge. If a chosen rank
    is persistently late in most steps, ranks with at least `share` of its lateness are chosen, too. If all
    ranks of a node are slow together, only the last one is charged, and without it the next one would be
    last.

    The chosen ranks stand out if they are late at least twice as often as any other rank that is late by as
    much. They must also be late in most steps, or carry most of the charge beyond the part that as many ranks
    would have by chance. On a host that launches unevenly some rank is always the last: a rank that is last
    only a little more often is not named. Ranks that are as slow as the chosen ones are named with them
    (`_as_slow`).
    """
    charges: dict[Charge, float] = defaultdict(float)
    lost: dict[int, float] = defaultdict(float)
    for item in costs:
        for (culprit, cause), charged in item.charged_ms.items():
            if culprit != MANY_RANKS and cause in ("compute", "host"):
                charges[culprit, cause] += charged
                lost[culprit] += charged
    worst = max(lost.values(), default=0.0)
    costly = {rank for rank, ms in lost.items() if ms >= share * worst and ms > 0}
    held = _held_up(costs, costly, share, late)
    found = _named(sorted(costly | (_as_late(costly, share, late) - held)), costs)
    if not found or not _stand_out(found, lost, len(costs), share, _without(late, held)):
        return []
    as_slow = _as_slow(costs, charges, costly, share)
    return _named(sorted({*found, *as_slow}), costs) or found


def _stand_out(
    found: list[int], lost: Mapping[int, float], ranks: int, share: float, late: LatenessTable | None
) -> bool:
    """True if the ranks found stand out, as `waited_for` explains; `lost` is each rank's charge."""
    chance = len(found) / ranks
    carried = sum(lost.get(rank, 0.0) for rank in found) / sum(lost.values())
    carry_most = carried - chance >= MOST_OF_CHARGE * (1.0 - chance)
    if late is None:
        return carry_most
    rows = {row.rank: row for row in late.ranks if row.pattern != "one_off"}
    least = min(rows[rank].share_of_steps if rank in rows else 0.0 for rank in found)
    longest = max((rows[rank].late_ms for rank in found if rank in rows), default=0.0)
    others = max(
        (
            row.share_of_steps
            for rank, row in rows.items()
            if rank not in found and row.late_ms >= share * longest
        ),
        default=0.0,
    )
    return least >= TIMES_AS_OFTEN * others and (least >= MOST_STEPS or carry_most)


def late_by_host(costs: Iterable[RankCosts], ranks: Iterable[int]) -> list[int]:
    """The members of `ranks` that the others wait for because of their host more than of their compute.

    A rank that is hardly charged, because another one is as late, is assumed to be like most of `ranks`.
    """
    lost: dict[tuple[int, str], float] = defaultdict(float)
    for item in costs:
        for charge, charged in item.charged_ms.items():
            lost[charge] += charged
    pairs = {rank: (lost[rank, "host"], lost[rank, "compute"]) for rank in ranks}
    host, compute = (sum(pair[place] for pair in pairs.values()) for place in (0, 1))
    least = HARDLY * max((sum(pair) for pair in pairs.values()), default=0.0)
    known = {rank: pair if sum(pair) > least else (host, compute) for rank, pair in pairs.items()}
    return [rank for rank, pair in known.items() if pair[0] > pair[1]]


def _as_late(costly: Set[int], share: float, late: LatenessTable | None) -> set[int]:
    """The ranks that are late persistently by `share` or more of what such a one of `costly` is."""
    rows = {row.rank: row.late_ms for row in late.ranks if row.pattern == "persistent"} if late else {}
    longest = max((ms for rank, ms in rows.items() if rank in costly), default=math.inf)
    return {rank for rank, ms in rows.items() if ms >= share * longest}


def _held_up(costs: list[RankCosts], costly: Set[int], share: float, late: LatenessTable | None) -> set[int]:
    """Returns the ranks that are late because they wait for one of `costly` before the other ranks wait for
    them. Their own work takes no longer than that of most ranks, but the costly rank's work does.
    """
    own = {item.rank: item.takes_ms("compute") + item.takes_ms("host") for item in costs}
    usual = median_low(own.values())
    longer = max((own[rank] - usual for rank in costly), default=0.0)
    if longer <= 0 or late is None:
        return set()
    least = usual + share * EXPLAINED * longer
    return {row.rank for row in late.ranks if row.rank not in costly and own.get(row.rank, least) < least}


def _without(late: LatenessTable | None, ranks: Set[int]) -> LatenessTable | None:
    if late is None or not ranks:
        return late
    kept = [row for row in late.ranks if row.rank not in ranks]
    return msgspec.structs.replace(late, ranks=kept)


def _as_slow(
    costs: list[RankCosts], charges: Mapping[Charge, float], costly: Set[int], share: float
) -> set[int]:
    """These are the ranks whose extra time is at least `share` of the extra time of one of `costly`, if that
    time explains most of its charge. They are slightly late at each of many collectives, and without the
    costly rank the others would wait for them.
    """
    found: set[int] = set()
    causes: tuple[tuple[Cause, Cause], ...] = (("compute", "host"), ("host", "compute"))
    for cause, other in causes:
        takes = {item.rank: item.takes_ms(cause) for item in costs}
        usual = median_low(takes.values())
        lost = {rank: charges.get((rank, cause), 0.0) for rank in costly}
        mostly = [rank for rank in costly if lost[rank] > charges.get((rank, other), 0.0)]
        longer = [
            takes[rank] - usual
            for rank in mostly
            if takes[rank] - usual >= EXPLAINED * lost[rank] / len(costs)
        ]
        if longer:
            found |= {rank for rank, ms in takes.items() if ms - usual >= share * max(longer)}
    return found


def _named(ranks: list[int], costs: list[RankCosts]) -> list[int]:
    return [] if len(ranks) == len(costs) else ranks
