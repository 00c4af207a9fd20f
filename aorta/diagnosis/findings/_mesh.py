"""Findings about the ranks of a mesh: what its replay says of workers, stages, microbatches and links."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Finding, Speedup
from aorta.artefacts.mesh import MeshCause, SlowdownRecord
from aorta.averages import fmean
from aorta.diagnosis.finding import STEP_SHARE, RuleResult, SubCause, found, measured, not_measured
from aorta.diagnosis.findings import _experts
from aorta.diagnosis.host_time import window_evidence
from aorta.diagnosis.observation import Observation
from aorta.units import rank_words

CODES = {
    "slow_worker": "One worker takes longer than the others for the same work.",
    "replica_work": "One replica takes longer than the others in all of its stages.",
    "stage_work": "One stage of the pipeline has more work than the others.",
    "uneven_microbatches": "Some microbatches take longer than others in the forward and backward pass.",
}
"""Causes that make ranks wait for other ranks."""
_OF_RANKS = ("slow_worker", "replica_work")
LINK = "slow_link"
_EVEN = (
    "balance sequence lengths: give each microbatch the same work, not only the same number of tokens",
    "sort or pack sequences so that the sum of squared lengths is equal in all microbatches",
)
_SLOWER = 1.005
"""The least S that the verdict can print as more than 1.00."""


MOST_PCT = 10.0
"""Highest threshold that applies to a replay. A replay contains no scheduling noise between operations, so a
larger configured threshold is lowered to this.
"""


def ideal_bubble(seen: Observation) -> float:
    """Returns the share of a pipeline's time, 0 to 1, in which ranks are idle in the ideal schedule. 0 if
    there is no pipeline, or if the ideal is not known.
    """
    mesh = seen.mesh.mesh if seen.mesh else None
    return (mesh.bubble.ideal or 0.0) if mesh is not None and mesh.bubble is not None else 0.0


def without_ms(cause: MeshCause, of: SlowdownRecord, seen: Observation) -> tuple[float, float]:
    """Returns the measured step, and that step without a cause: less what the replay loses without it."""
    rows = seen.steps.breakdown.per_rank
    whole = fmean(row.step_ms for row in rows) if rows else of.step_ms
    return whole, max(whole - (of.step_ms - cause.step_ms), cause.step_ms)


def worst(seen: Observation, codes: Sequence[str]) -> MeshCause | None:
    """Returns the costliest cause among `codes`. None if there is none, or nothing was replayed."""
    found = seen.mesh.slowdown if seen.mesh else None
    return next((one for one in found.causes if one.cause in codes), None) if found else None


def answer(seen: Observation, kind: str, threshold: float, codes: Sequence[str]) -> RuleResult:
    """Returns the answer of a finding whose causes are `codes`, by the replay of the mesh."""
    assert seen.mesh is not None
    of = seen.mesh.slowdown
    if of is None:
        return not_measured(kind, threshold, STEP_SHARE, f"not measured: {seen.mesh.why_not}")
    cause, threshold = worst(seen, codes), min(threshold, MOST_PCT)
    whole, left = without_ms(cause, of, seen) if cause else (1.0, 1.0)
    tokens = _experts.times(cause.ranks, seen) if cause and cause.cause in _OF_RANKS else None
    if tokens is not None:
        # Tokens that leave the busy experts go to the others: every rank takes the mean.
        left = max(whole - (of.step_ms - of.ideal_ms), of.ideal_ms)
    value = 100.0 * (1.0 - left / whole)
    made = measured(kind, value, threshold, STEP_SHARE, fired=value > threshold)
    if cause is None or not made.fired:
        return RuleResult(made)
    gain = whole / left
    return found(
        made,
        words(cause, seen) if tokens is None else _experts.words(cause.ranks, tokens),
        {
            "mesh_cause": cause.cause if tokens is None else _experts.CODE,
            **({} if tokens is None else {"exchanged_times": tokens}),
            "stages": cause.stages,
            "excess": cause.excess,
            "slowdown": of.value,
            **window_evidence(seen),
            "m_worker": of.worker_share,
            "m_last_stage": of.stage_share,
            "step_ms": of.step_ms,
            "files": list(seen.steps.files),
        },
        # By windows alone, nothing tells what the other ranks' hosts need.
        Speedup(low=1.0, high=gain)
        if window_evidence(seen)
        else Speedup(low=1.0 + (gain - 1.0) / 2, high=gain, expected=gain, basis="replay"),
        ranks=[] if cause.cause == "uneven_microbatches" else cause.ranks,
        nodes=seen.job.nodes(cause.ranks),
    )


def cost_ms(seen: Observation, codes: Sequence[str]) -> float:
    """Returns what the costliest cause among `codes` takes of the step."""
    of, cause = seen.mesh.slowdown if seen.mesh else None, worst(seen, codes)
    return of.step_ms - cause.step_ms if of and cause else 0.0


def where(cause: MeshCause, seen: Observation) -> str:
    """Returns the stages of a cause in words."""
    total = len(seen.mesh.mesh.stages) if seen.mesh else 0
    names = " and ".join(str(stage) for stage in cause.stages)
    return f"stage{'s' if len(cause.stages) > 1 else ''} {names} of {total} ({rank_words(cause.ranks)})"


def words(cause: MeshCause, seen: Observation) -> str:
    """Returns a cause in words."""
    more, who = f"{100 * cause.excess:.0f} %", rank_words(cause.ranks)
    take, code = "takes" if len(cause.ranks) == 1 else "take", cause.cause
    if code == LINK and cause.stages:
        return f"transfers between {where(cause, seen)} take {more} longer than between the others"
    if code == "stage_work":
        alone = "computes for {} longer than the others: more work, or a slow rank"
        alone += " or host" if window_evidence(seen) else ""
        said = alone if len(cause.ranks) == 1 else "has {} more work than the others"
        return f"{where(cause, seen)} {said.format(more)}"
    return {
        "slow_worker": f"{who} {take} {more} longer than the other ranks for the same work",
        "replica_work": f"the replica of {who} takes {more} longer than the other replicas",
        "uneven_microbatches": f"microbatches differ by {more} (standard deviation ÷ mean), so ranks wait in "
        f"turn",
        LINK: f"collectives of {who} take {more} longer than those of other groups",
    }[code]


def speaks(finding: Finding) -> bool:
    """Returns True if a finding is one of the mesh's, as `answer` makes them."""
    return "mesh_cause" in finding.evidence


def sub_cause(finding: Finding) -> SubCause:
    """Returns the cause behind a finding of the mesh."""
    return SubCause(finding.evidence["mesh_cause"], finding.cause)


def actions(finding: Finding) -> list[str]:
    """Returns what to do about a cause."""
    code, stages = finding.evidence["mesh_cause"], finding.evidence["stages"]
    if code == "slow_worker":
        who = rank_words(finding.ranks)
        return [
            f"compare the clocks, temperature and other processes of the node of {who} "
            "with those of the other nodes",
            f"run once without the node of {who} to see what it costs",
        ]
    if code == "replica_work":
        return [
            "balance the data of the replicas: give each one the same work per step",
            f"compare the clocks and temperature of the nodes of {rank_words(finding.ranks)} "
            "with those of the other nodes",
        ]
    if code == "stage_work":
        return [
            f"move layers from stage {stages[0]} to the other stages",
            "count the embedding and the loss as work of the first and the last stage",
        ]
    if code == LINK and not stages:
        return [
            f"place {rank_words(finding.ranks)} on one node, or on nodes that share a fast network",
            "compare the network of these ranks with that of the other groups: interface, rate, errors",
        ]
    if code == LINK:
        return [
            f"compare the network between the ranks of stage {stages[0]} and of stage {stages[-1]} with the"
            " other links: interface, rate, errors",
            "place neighbouring stages on nodes that share a fast network",
        ]
    return [_experts.ACTION] if code == _experts.CODE else [*_EVEN]


def statement(finding: Finding) -> str:
    """Returns the sentence of the verdict, with S where it is over 1.

    S compares with the same work spread evenly. Much work in the first stage can make S less than 1.
    """
    ratio, cause = finding.evidence["slowdown"], finding.cause
    slow = f"The step takes {ratio:.2f} times as long as if all workers were equal: "
    said = slow + cause if ratio >= _SLOWER else cause[:1].upper() + cause[1:]
    return f"{said}. That costs {finding.value:.1f} % of the step."
