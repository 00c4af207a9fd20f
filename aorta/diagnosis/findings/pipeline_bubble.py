"""Pipeline bubble: ranks idle because the pipeline fills and drains with too few microbatches.

What it finds:
    The share of the pipeline's time that ranks would be idle even if all stages and microbatches were equal.
    If the ideal is not known, the measured share is used, and only with fewer microbatches than stages.
Why it costs time:
    With p stages and m microbatches, each rank is idle for (p - 1) / (m + p - 1) of the pipeline's time.
    It waits until the first microbatch arrives, and after the last one leaves.
What to do:
    Use more microbatches per step, fewer stages, or an interleaved or zero-bubble schedule.
"""

from __future__ import annotations

from aorta.artefacts.analysis import Finding, Speedup
from aorta.diagnosis.finding import (
    STEP_SHARE,
    FindingSpec,
    RuleResult,
    found,
    measured,
    not_measured,
)
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy

KIND = "pipeline_bubble"


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold = policy.pipeline_bubble_pct
    mesh = seen.mesh.mesh if seen.mesh else None
    if mesh is None or mesh.bubble is None:
        return not_measured(KIND, threshold, STEP_SHARE, "not measured: no pipeline schedule was recorded")
    share, stages, microbatches = mesh.bubble.ideal, len(mesh.stages), mesh.microbatches or 0
    if share is None and 0 < microbatches < stages:
        # No schedule fills a pipeline with fewer microbatches than stages.
        share = mesh.bubble.measured
    if share is None:
        return not_measured(
            KIND,
            threshold,
            STEP_SHARE,
            f"not measured: the ideal bubble is not known for a schedule that is {mesh.schedule}",
        )
    value = 100.0 * share
    made = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not made.fired:
        return RuleResult(made)
    return found(
        made,
        f"{stages} stages share {microbatches} microbatches per step",
        {
            "stages": stages,
            "microbatches": microbatches,
            "schedule": mesh.schedule,
            "bubble_measured": mesh.bubble.measured,
            "bubble_ideal": mesh.bubble.ideal,
        },
        Speedup(low=1.0, high=1.0 / (1.0 - share)),
    )


def _cost(seen: Observation) -> float:
    mesh = seen.mesh.mesh if seen.mesh else None
    if mesh is None or mesh.bubble is None or not seen.steps.costs:
        return 0.0
    few = 0 < (mesh.microbatches or 0) < len(mesh.stages)
    share = mesh.bubble.ideal if mesh.bubble.ideal is not None else mesh.bubble.measured if few else 0.0
    return share * seen.steps.step_ms


def _actions(_: Finding, seen: Observation) -> list[str]:
    stages = len(seen.mesh.mesh.stages) if seen.mesh else 1
    least = 4 * stages
    return [
        f"use more microbatches per step: with {least}, the bubble takes {_ideal_pct(stages, least):.0f} %",
        "or use fewer stages, or an interleaved or zero-bubble schedule",
    ]


def _ideal_pct(stages: int, microbatches: int) -> float:
    return 100.0 * (stages - 1) / (microbatches + stages - 1)


def _statement(finding: Finding, _: Observation) -> str:
    found = finding.evidence
    return (
        f"Ranks are idle for {finding.value:.0f} % of the pipeline's time while it fills and drains "
        f"({found['stages']} stages, {found['microbatches']} microbatches, {found['schedule']}; measured "
        f"bubble {100 * found['bubble_measured']:.0f} %)."
    )


SPEC = FindingSpec(
    kind=KIND,
    name="pipeline bubble",
    subject="the pipeline's bubble",
    value="idle time that even the ideal pipeline schedule would have",
    value_of="",
    measured_from="the recorded stages and microbatches",
    order=35,
    thresholds=("pipeline_bubble_pct",),
    fires_below=False,
    measure=_measure,
    cost=_cost,
    waits_for=(),
    of_host_time=False,
    of_kernel_kinds=False,
    waits=None,
    symptom_of=None,
    claims=None,
    yields=False,
    may_wait_for_missing=False,
    sub_causes={},
    sub_cause=None,
    compares_ranks=(),
    removes=None,
    least_gain_pct=None,
    unsupported=None,
    needed=None,
    alike=None,
    parts=None,
    lowers={},
    actions=_actions,
    statement=_statement,
)
