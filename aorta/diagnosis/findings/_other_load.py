"""Load of other programs on the job's CPUs: what it explains, and what stays a cause of the job's own."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from aorta.artefacts.analysis import Finding
from aorta.artefacts.replayed import LatenessTable
from aorta.diagnosis.finding import SubCause
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import MOST_STEPS
from aorta.metrics.lateness import PERSISTENT
from aorta.metrics.node_load import NodeLoad, crowded

OTHERS_CPU_PCT = 50.0
"""Other programs are a noisy neighbour if together they use more than this, in % of one CPU."""
BY_CHANCE = 0.01
"""Other programs do not explain that the same ranks are late repeatedly if the probability of this is below
this value.
"""


def explains_late_ranks(seen: Observation, ranks: Sequence[int], *, by_host: bool) -> str | None:
    """Returns that other programs kept the CPUs of all nodes, where that explains why ranks are late.

    Such a load delays now one rank, now another. A rank that is late in nearly every step has a cause of its
    own, and so has one that is late time and again while the others hardly ever are.

    Args:
        seen: the run.
        ranks: that are late.
        by_host: their hosts are late, not their compute.
    """
    around = seen.around
    full = crowded(around.loads, around.cpus_machine)
    hosts = set(seen.job.hosts.values()) or set(around.loads)
    if not full or not hosts <= full.keys() or (seen.job.cuda and not by_host):
        return None
    late = seen.model.lateness if seen.model else None
    always = {item.rank for item in late.ranks if item.pattern == "persistent"} if late else set()
    if always.issuperset(ranks):
        return None
    if late is not None and ranks and _time_and_again(late, ranks, seen.job.world_size):
        return None
    used = ", ".join(f"{cpus:.1f} CPUs on {host}" for host, cpus in sorted(full.items()))
    return f"other programs used {used}, and hardly any were free: a rank that waits for a core is late"


def _time_and_again(late: LatenessTable, ranks: Sequence[int], world: int) -> bool:
    """Returns whether each of some ranks is late in most steps and other ranks are hardly ever, or whether
    they are late so much oftener than the others that it is no chance.
    """
    mine = [row for row in late.ranks if row.rank in ranks]
    others = sum(row.late_steps for row in late.ranks if row.rank not in ranks)
    always = len(mine) == len(ranks) and all(
        row.share_of_steps >= MOST_STEPS and row.late_steps >= PERSISTENT * (row.late_steps + others)
        for row in mine
    )
    return always or _chance(late, ranks, world) <= BY_CHANCE


def _chance(late: LatenessTable, ranks: Sequence[int], world: int) -> float:
    """Returns the chance, at most 1, that some ranks are late so much oftener than all others by a load that
    delays each rank alike.

    It is the chance of a coin for the least often late of `ranks` and the most often late other one, for as
    many pairs as there are ranks. Late steps in a row count once: the load may stay with a rank for a while.
    """
    times = {row.rank: row.late_times or 0 for row in late.ranks}
    mine = min(times.get(rank, 0) for rank in ranks)
    others = max((count for rank, count in times.items() if rank not in ranks), default=0)
    return min(world * _heads(mine, mine + others), 1.0)


def _heads(least: int, throws: int) -> float:
    """Returns the chance of at least `least` heads in `throws` throws of a coin."""
    ways = each = comb(throws, least)
    for heads in range(least, throws):
        # The ways follow from those before: a sum of binomials takes seconds for thousands of throws.
        each = each * (throws - heads) // (heads + 1)
        ways += each
    chance: float = ways / 2**throws
    return chance


def explains_exchange(transfer_pct: float, seen: Observation, policy: Policy) -> str | None:
    """Returns that other programs delay an exchange that CPUs carry out, or None.

    Where hardly a core is free, such an exchange waits for cores. The load explains it where the fastest
    tenth of the calls would be below the threshold.

    Args:
        transfer_pct: share of the step that is exchange.
        seen: the run.
        policy: holds the threshold.
    """
    full = crowded(seen.around.loads, seen.around.cpus_machine)
    replays = seen.model.replays if seen.model else None
    if seen.job.cuda or not full or replays is None:
        return None
    places = replays.places()
    taken = sum(place.transfer_ms for place in places)
    if not taken:
        return None
    best = transfer_pct * sum(place.fastest_ms for place in places) / taken
    if best > policy.exchange_pct:
        return None
    host = max(full, key=full.__getitem__)
    return (
        f"the transfer takes {transfer_pct:.1f} % of the step; at the rate of its fastest calls it would "
        f"take {best:.1f} % (threshold {policy.exchange_pct:g}). It runs on CPUs, and other programs used "
        f"{full[host]:.1f} of {seen.around.cpus_machine[host]} CPUs on {host}"
    )


def neighbour(finding: Finding, seen: Observation) -> SubCause | None:
    """Returns that other programs use the nodes of late ranks, and no node of a punctual one; or None."""
    loads = {
        host: load
        for host, item in seen.around.loads.items()
        if (load := _foreign(seen, host, item)) is not None
    }
    beside = [item.rank for item in seen.steps.costs if item.rank not in finding.ranks]
    if set(seen.job.nodes(beside)) & set(finding.nodes):
        return None  # ranks of the same node are punctual
    own = [loads[host] for host in finding.nodes if host in loads]
    others = [load for host, load in loads.items() if host not in finding.nodes]
    most = max(own, default=0.0)
    if most < OTHERS_CPU_PCT or (others and max(others) >= most / 2):
        return None
    text = f"other programs use {most:.0f} % of a CPU on {', '.join(finding.nodes)}: a noisy neighbour"
    return SubCause("noisy_neighbour", text, {"foreign_cpu_pct": most})


def _foreign(seen: Observation, host: str, item: NodeLoad) -> float | None:
    """Returns the CPU that others use there, 100 per CPU."""
    cpus = seen.around.cpus_machine.get(host)
    if item.cpu_pct is None or item.job_cpu_pct is None or not cpus:
        return None
    return max(item.cpu_pct * cpus - item.job_cpu_pct, 0.0)
