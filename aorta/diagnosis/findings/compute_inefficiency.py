"""Inefficient compute: kernels take longer than the same work needs.

What it finds:
    The share of the step that the costliest of five mistakes takes, according to the replay of the traces.
    The mistakes are matrix products without tensor cores, attention that materialises its scores,
    recomputation, chains of elementwise kernels, and loops of tiny matrix products.
Why it costs time:
    The GPU is busy, but much of its work is unnecessary.
What to do:
    Fix the mistake that the report names. Its page (`aorta explain ID`) shows the code before and after the
    fix.
"""

from __future__ import annotations

from aorta.artefacts.analysis import Finding
from aorta.artefacts.mistakes import Mistake
from aorta.diagnosis.finding import (
    STEP_SHARE,
    FindingSpec,
    RuleResult,
    SubCause,
    found,
    gain,
    measured,
    not_measured,
    value_words,
)
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy

KIND = "compute_inefficiency"
_CAUSES = (
    SubCause("fp32_matmul", CATALOGUE["fp32_matmul"].page.finds),
    SubCause("math_attention", CATALOGUE["math_attention"].page.finds),
    SubCause("needless_checkpointing", CATALOGUE["needless_checkpointing"].page.finds),
    SubCause("elementwise_chains", CATALOGUE["elementwise_chains"].page.finds),
    SubCause("tiny_matmuls", CATALOGUE["tiny_matmuls"].page.finds),
)
_MISTAKES = tuple(cause.code for cause in _CAUSES)


def _costliest(seen: Observation) -> Mistake | None:
    found = [item for item in seen.facts.mistakes if item.id in _MISTAKES and not item.intended]
    return max(found, key=lambda item: item.gain.value, default=None)


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold, mistake = policy.compute_inefficiency_pct, _costliest(seen)
    # Kernels alone show some of the mistakes, but not that there is none.
    if (seen.facts.profiler_weight is None and mistake is None) or not seen.steps.costs:
        reason = "not measured: needs operator and kernel traces from every rank"
        return not_measured(KIND, threshold, STEP_SHARE, reason, remedy="profiling.enabled=true")
    value = 100.0 * (1.0 - 1.0 / mistake.gain.value) if mistake else 0.0
    answer = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not answer.fired or mistake is None:
        return RuleResult(answer)
    step = seen.steps.step_ms
    low, high = (step * (1.0 - 1.0 / end) for end in (mistake.gain.low, mistake.gain.high))
    return found(
        answer,
        f"{mistake.title[0].lower()}{mistake.title[1:]}",
        {"mistake": mistake.id, "step_ms": step, **mistake.evidence, "files": [*seen.steps.files]},
        gain(step, low, high),
    )


def _cost(seen: Observation) -> float:
    mistake = _costliest(seen)
    return seen.steps.step_ms * (1.0 - 1.0 / mistake.gain.value) if mistake else 0.0


def _sub_cause(finding: Finding, _: Observation, __: Policy) -> SubCause:
    return next(cause for cause in _CAUSES if cause.code == finding.evidence["mistake"])


def _actions(_: Finding, seen: Observation) -> list[str]:
    """Returns the remedy of the costliest mistake; a finding that it is a cause of asks for it, too."""
    mistake = _costliest(seen)
    if mistake is None:
        return []
    return [CATALOGUE[mistake.id].page.remedy.replace("`", ""), f"read more: aorta explain {mistake.id}"]


def _statement(finding: Finding, _: Observation) -> str:
    return f"Inefficient compute: {value_words(finding)} % of the step is unnecessary: {finding.cause}."


SPEC = FindingSpec(
    kind=KIND,
    name="inefficient compute",
    subject="inefficient compute",
    value="the costliest known inefficiency in compute",
    value_of="",
    measured_from="kernel and operator names in traces, and a replay without the inefficiency",
    order=45,
    thresholds=("compute_inefficiency_pct",),
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
    sub_causes={id_: f"{CATALOGUE[id_].page.title}." for id_ in _MISTAKES},
    sub_cause=_sub_cause,
    compares_ranks=(),
    removes=None,
    least_gain_pct=None,
    unsupported=None,
    parts=None,
    needed=None,
    alike=None,
    lowers={},
    actions=_actions,
    statement=_statement,
)
