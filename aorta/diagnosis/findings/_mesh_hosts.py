"""Hosts of a mesh's ranks that work longer than the others between operations, which no replay holds."""

from __future__ import annotations

from aorta.averages import fmean, median_low
from aorta.diagnosis.finding import MOST, STEP_SHARE, RuleResult, found, gain, measured
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.units import rank_words


def late_hosts(seen: Observation) -> dict[int, float]:
    """Returns the ms per step that others wait for the host of each rank because it works longer than usual.

    Stages of a pipeline wait for each other's hosts in turn, since each one has to start its operations. What
    a host works longer than the median one is no part of that.
    """
    if seen.mesh is None or len(seen.steps.costs) < 2:
        return {}
    own = {item.rank: item.host_ms for item in seen.steps.costs}
    usual = median_low(own.values())
    lost: dict[int, float] = {}
    for rank, host_ms in own.items():
        charged = fmean(
            item.charged_ms.get((rank, "host"), 0.0) for item in seen.steps.costs if item.rank != rank
        )
        longer = host_ms - usual
        if longer > 0 and longer >= MOST * charged:
            lost[rank] = min(charged, longer)
    return lost


def answer(mesh: RuleResult, seen: Observation, policy: Policy) -> RuleResult:
    """Returns the ranks whose hosts are late, where that costs more than what the mesh's replay found.

    Args:
        mesh: the answer of the replay.
        seen: the run.
        policy: with the least share of the step, and the steps that the records need.
    """
    if seen.steps.too_little(policy):
        return mesh
    threshold = policy.straggler_pct
    lost, step_ms = late_hosts(seen), seen.steps.step_ms if seen.steps.costs else 0.0
    worst = max(lost.values(), default=0.0)
    value = 100.0 * worst / step_ms if step_ms else 0.0
    if value <= max(threshold, mesh.measured.value or 0.0):
        return mesh
    ranks = sorted(rank for rank, ms in lost.items() if ms >= worst / 2)
    do = "spends" if len(ranks) == 1 else "spend"
    return found(
        measured(mesh.measured.kind, value, threshold, STEP_SHARE, fired=True),
        f"the other ranks wait for {rank_words(ranks)}, which {do} more time on host work",
        {
            "waits_for_compute_ms": 0.0,
            "waits_for_host_ms": worst,
            "step_ms": step_ms,
            "files": list(seen.steps.files),
        },
        gain(step_ms, worst / 2, worst),
        ranks=ranks,
        nodes=seen.job.nodes(ranks),
    )
