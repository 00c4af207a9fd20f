"""Between steps: much of the time is spent outside of steps.

What it finds:
    The share of the time, from the first to the last steady step, between the end of a step and the start of
    the next one. The value is that of the worst rank.
Why it costs time:
    Validation, checkpoints, logging and loading outside the step leave all devices idle. If one rank does
    more of this, the others wait for it in the next step's collectives.
What to do:
    Do this work less often, spread it evenly over the ranks, or move it to another thread or process.
"""

from __future__ import annotations

from collections.abc import Mapping

from aorta.artefacts.analysis import Finding
from aorta.artefacts.unseen import BetweenSteps
from aorta.averages import fmean, median
from aorta.diagnosis.finding import (
    FindingSpec,
    Found,
    RuleResult,
    found,
    gain,
    measured,
    not_measured,
    value_words,
)
from aorta.diagnosis.observation import Observation, ObservedSteps
from aorta.diagnosis.policy import Policy
from aorta.metrics.between_steps import UNKNOWN
from aorta.units import rank_words

KIND = "between_steps"
_CAUSES = {
    UNKNOWN: "no record covers the time between the end of a step and the start of the next one",
    "validation": "most of the time between steps is before steps that follow a validation",
    "checkpoint": "most of the time between steps is before steps that follow a checkpoint",
    "logging": "most of the time between steps is spent on logging",
    "first batch": "most of the time between steps is before the first step of an epoch",
}
_FIRST_ACTIONS = {
    UNKNOWN: "find out what runs between the steps{who}: validation, checkpoints, logging, loading",
    "validation": "validate less often or on fewer samples, or divide the samples among the ranks{who}",
    "checkpoint": "write checkpoints less often{who}, or in the background: dcp.async_save",
    "logging": "log less often{who}: collect the logged values on the GPU, and read them back only once "
    "in many steps",
    "first batch": "keep the loader's workers between epochs{who}: persistent_workers=True",
}
_WORDS = {
    "validation": "validation",
    "checkpoint": "writing checkpoints",
    "logging": "logging",
    "first batch": "fetching the first batch of an epoch",
}
UNIT = "% of time"


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold, share = policy.between_steps_pct, seen.steps.between_share
    if share is None:
        return not_measured(KIND, threshold, UNIT, "not measured: no consecutive steps were recorded")
    value = 100.0 * share
    answer = measured(KIND, value, threshold, UNIT, fired=value > threshold and bool(seen.steps.costs))
    if not answer.fired:
        return RuleResult(answer)
    ranks, lost = culprits(seen.steps.between_shares), _cost(seen)
    phases = {item.phase: item.ms for item in recorded_gaps(seen.steps)}
    return found(
        answer,
        _CAUSES[main_phase(seen.steps)],
        {
            "between_steps_ms": lost,
            "phases_ms": phases,
            "step_ms": seen.steps.step_ms,
            "files": list(seen.steps.files),
        },
        gain(seen.steps.step_ms + (0.0 if seen.steps.between_inside else lost), 0.0, lost),
        ranks=ranks,
        nodes=seen.job.nodes(ranks),
    )


def culprits(shares: Mapping[int, float]) -> list[int]:
    """Returns the ranks with far more time between steps than most: the others wait for them."""
    usual = median(shares.values()) if shares else 0.0
    found = [rank for rank, share in shares.items() if share > 0.05 and share > 2 * usual]
    return found if len(found) < len(shares) / 2 else []


def recorded_gaps(steps: ObservedSteps) -> list[BetweenSteps]:
    """Returns the time between steps by what it was spent on, the most first. Empty means none, or not
    known.
    """
    if not steps.costs:
        return []
    found = [_gap(phase, by_rank, steps) for phase, by_rank in steps.between_ms.items()]
    return sorted((item for item in found if item.ms), key=lambda item: -item.ms)


def _gap(phase: str, by_rank: Mapping[int, float], steps: ObservedSteps) -> BetweenSteps:
    every = {rank: by_rank.get(rank, 0.0) for rank in steps.between_shares}
    whole = 0.0 if steps.between_inside else 1.0
    late = culprits({rank: ms / (steps.step_ms + whole * ms) for rank, ms in every.items()})
    return BetweenSteps(phase=phase, ms=fmean(every.values()), ranks=late)


def main_phase(steps: ObservedSteps) -> str:
    """Returns what most of the time between steps was spent on."""
    return next((item.phase for item in recorded_gaps(steps)), UNKNOWN)


def _lost_ms(steps: ObservedSteps) -> float:
    share = steps.between_share or 0.0
    if steps.between_inside:
        return steps.step_ms * share if steps.costs else 0.0
    return steps.step_ms * share / (1.0 - share) if steps.costs and share < 1.0 else 0.0


def _cost(seen: Observation) -> float:
    return _lost_ms(seen.steps)


def _claims(other: FindingSpec, _: Finding, __: Found, seen: Observation, ___: Policy) -> bool:
    """Returns True if the host is to blame, and most of its part of the traced step lies between steps."""
    steps = seen.steps
    if not other.of_host_time or not steps.between_inside or not steps.costs:
        return False
    return _lost_ms(steps) >= fmean(item.host_ms for item in steps.costs) / 2


def _actions(finding: Finding, seen: Observation) -> list[str]:
    who = f" of {rank_words(finding.ranks)}" if finding.ranks else ""
    return [
        _FIRST_ACTIONS[main_phase(seen.steps)].format(who=who),
        "do this work less often, evenly on all ranks, or in the background",
    ]


def _statement(finding: Finding, seen: Observation) -> str:
    phase = main_phase(seen.steps)
    rest = ", which no step covers" if phase == UNKNOWN else f", most of it {_WORDS[phase]}"
    who = f" of {rank_words(finding.ranks)}, while the other ranks wait" if finding.ranks else ""
    return f"{value_words(finding)} % of the time is spent between steps{who}{rest}."


SPEC = FindingSpec(
    kind=KIND,
    name="time between steps",
    subject="time between steps",
    value="time between steps on the worst rank",
    value_of="",
    measured_from="the recorded start and end of each step",
    order=47,
    thresholds=("between_steps_pct",),
    fires_below=False,
    measure=_measure,
    cost=_cost,
    waits_for=(),
    of_host_time=False,
    of_kernel_kinds=False,
    waits=None,
    symptom_of=None,
    claims=_claims,
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
