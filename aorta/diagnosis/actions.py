"""Gives each finding the actions that would remove it."""

from __future__ import annotations

from msgspec import structs

from aorta.artefacts.analysis import Finding
from aorta.averages import fmean
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.observation import Observation

FEWER_RANKS = "run fewer ranks per node (--procs-per-node), or give each node its own CPUs"
"""Begins the first action where ranks share cores."""


def with_actions(finding: Finding, seen: Observation) -> Finding:
    """Returns the finding with what to do; one that yields takes the advice of the costliest cause.

    Where the replay of a pipeline misses the step, the rest is the hosts'. Waits behind it look like
    communication.
    """
    spec, of_hosts = FINDINGS[finding.kind], seen.steps.replay_missed is not None
    costs = {
        kind: other.cost(seen)
        for kind, other in FINDINGS.items()
        if spec.yields
        and seen.steps.costs
        and other.cost
        and not other.yields
        and (other.of_host_time or not of_hosts)
    }
    most = max(costs, key=lambda kind: costs[kind], default=finding.kind)
    copied = fmean(item.copy_ms for item in seen.steps.costs) if seen.steps.costs else 0.0
    advice = FINDINGS[most] if costs.get(most, 0.0) > copied else spec
    return structs.replace(finding, actions=[*_own_cores(finding, seen), *advice.actions(finding, seen)])


def _own_cores(finding: Finding, seen: Observation) -> list[str]:
    """Returns what comes before every other action where ranks share cores, in what all ranks do slowly."""
    everyone = set(finding.ranks) in (set(), {row.rank for row in seen.steps.breakdown.per_rank})
    if seen.around.cores_shared is None or FINDINGS[finding.kind].cost is None or not everyone:
        return []
    return [f"{FEWER_RANKS}: {seen.around.cores_shared}"]
