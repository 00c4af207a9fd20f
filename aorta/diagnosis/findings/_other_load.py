"""Load of other programs on the job's CPUs: what it explains, and what stays a cause of the job's own."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.node_load import crowded


def explains_late_ranks(seen: Observation, ranks: Sequence[int], *, by_host: bool) -> str | None:
    """Returns that other programs kept the CPUs of all nodes, where that explains why ranks are late.

    Such a load delays now one rank, now another. A rank that is late in nearly every step has a cause of its
    own.

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
    used = ", ".join(f"{cpus:.1f} CPUs of {host}" for host, cpus in sorted(full.items()))
    return f"other programs used {used}, and hardly any were free: a rank that waits for a core is late"


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
        f"the exchange takes {transfer_pct:.1f} % of the step; at the rate of its fastest calls it would "
        f"take {best:.1f} % (threshold {policy.exchange_pct:g}). It runs on CPUs, and other programs used "
        f"{full[host]:.1f} of {seen.around.cpus_machine[host]} CPUs of {host}"
    )
