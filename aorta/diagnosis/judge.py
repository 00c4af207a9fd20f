"""One observation and one policy to an analysis: the cause that costs the most time, with its symptoms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from aorta.artefacts.analysis import Analysis, Finding, Kind, RuleMeasurement, Verdict, WhatIf
from aorta.artefacts.unseen import Missing
from aorta.diagnosis.finding import RuleResult
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.prediction import predicted, within_noise
from aorta.diagnosis.rank import blame_list
from aorta.diagnosis.symptoms import explain, weight
from aorta.diagnosis.unseen import beside_unseen
from aorta.diagnosis.verdict import Judged, verdict_of
from aorta.diagnosis.where import with_where


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion that findings and replay allow about a run."""

    verdict: Verdict
    findings: list[Finding]
    """Symptoms under their causes."""
    measured: list[RuleMeasurement]
    """Every finding's answer, in order."""
    predictions: list[WhatIf]
    missing: list[Missing]


def judge(seen: Observation, policy: Policy) -> Analysis:
    """Returns the analysis of an observation; whatever is missing, there is an answer."""
    made, model, facts = conclude(seen, policy), seen.model, seen.facts
    return Analysis(
        **{name: getattr(facts, name) for name in facts.__slots__},
        verdict=made.verdict,
        findings=made.findings,
        measured=made.measured,
        missing=made.missing,
        unseen=list(seen.steps.unseen),
        breakdown=seen.steps.breakdown,
        blame=blame_list(seen.steps.waits),
        utilization=seen.monitored.utilization,
        data_quality=seen.quality,
        thresholds=policy.as_dict(),
        replay=model.record(made.predictions) if model else None,
        pop=model.pop(seen.steps.breakdown.per_rank, cuda=seen.job.cuda) if model else None,
        lateness=model.lateness if model else None,
        clocks=list(model.clocks) if model else [],
    )


def conclude(seen: Observation, policy: Policy) -> Conclusion:
    """Returns the verdict, the findings and their predictions."""
    answers = {kind: beside_unseen(spec, spec.measure(seen, policy), seen) for kind, spec in FINDINGS.items()}
    return weigh(answers, seen, policy)


def weigh(answers: Mapping[Kind, RuleResult], seen: Observation, policy: Policy) -> Conclusion:
    """Returns what the answers of the findings come to.

    A finding whose removal gains nothing by the replay, within its interval, is none, nor is one that nothing
    supports once waits are charged to their causes: its answer says so.
    """
    dropped: dict[Kind, str] = {}
    found = {kind: _with_actions(answer.finding, seen) for kind, answer in answers.items() if answer.finding}
    while True:
        pairs = [predicted(FINDINGS[item.kind], item, seen, policy) for item in explain(found, seen, policy)]
        noise = {
            what.kind: why
            for _, what in pairs
            if what and (why := within_noise(FINDINGS[what.kind], what, seen, policy))
        }
        noise |= unsupported([finding for finding, _ in pairs], seen, policy)
        if not noise:
            break
        dropped |= noise
        for kind in noise:
            del found[kind]
    measured = [
        msgspec.structs.replace(item.measured, fired=False, answer="not_found", reason=dropped[kind])
        if kind in dropped
        else item.measured
        for kind, item in answers.items()
    ]
    weighed = _with_costs([made for made, _ in pairs], seen)
    caused = [with_sub_cause(item, seen, policy) for item in weighed]
    findings = [with_where(FINDINGS[item.kind], item, seen) for item in caused]
    judged = verdict_of(Judged(findings, measured, dropped), seen, policy)
    predictions = [what for _, what in pairs if what is not None]
    return Conclusion(judged.verdict, judged.findings, measured, predictions, judged.missing)


def _with_actions(finding: Finding, seen: Observation) -> Finding:
    """Returns the finding with what to do. What yields to any cause takes the advice of the cause that takes
    most time, though that is below its threshold.
    """
    spec = FINDINGS[finding.kind]
    costs = {
        kind: other.cost(seen)
        for kind, other in FINDINGS.items()
        if spec.yields and seen.steps.costs and other.cost and not other.yields
    }
    most = max(costs, key=lambda kind: costs[kind], default=finding.kind)
    copied = fmean(item.copy_ms for item in seen.steps.costs) if seen.steps.costs else 0.0
    advice = FINDINGS[most] if costs.get(most, 0.0) > copied else spec
    actions = [*_own_cores(finding, seen), *advice.actions(finding, seen)]
    return msgspec.structs.replace(finding, actions=actions)


def _own_cores(finding: Finding, seen: Observation) -> list[str]:
    """Returns what comes before every other action where ranks share cores, in what all ranks do slowly."""
    everyone = set(finding.ranks) in (set(), {row.rank for row in seen.steps.breakdown.per_rank})
    if seen.around.cores_shared is None or FINDINGS[finding.kind].cost is None or not everyone:
        return []
    ranks = "run fewer ranks per node (--procs-per-node), or give the nodes CPUs of their own"
    return [f"{ranks}: {seen.around.cores_shared}"]


def unsupported(findings: Sequence[Finding], seen: Observation, policy: Policy) -> dict[Kind, str]:
    """Returns findings that nothing supports once waits are charged to their causes, and why."""
    found = {}
    for finding in findings:
        check = FINDINGS[finding.kind].unsupported
        why = check(finding, seen, policy) if check and finding.symptom_of is None else None
        if why is not None:
            found[finding.kind] = why
    return found


def _with_costs(findings: Sequence[Finding], seen: Observation) -> list[Finding]:
    """Returns the findings with what they cost, causes first, the costliest first.

    A cause costs what it takes, and no more than a replay without all of it gains: where other ranks' hosts
    need the step as well, who is last in it takes all of it and costs next to nothing.
    """
    made = []
    for finding in findings:
        cost, gained = weight(finding, findings, seen), finding.estimated_speedup
        if gained is not None and gained.expected is not None and seen.steps.costs:
            without = max(gained.expected, gained.limit or 0.0)
            cost = min(cost, max(seen.steps.step_ms * (1.0 - 1.0 / without), 0.0))
        made.append(msgspec.structs.replace(finding, lost_ms_per_step=cost if cost > 0 else None))
    return sorted(made, key=lambda item: (item.symptom_of is not None, -(item.lost_ms_per_step or 0.0)))


def with_sub_cause(finding: Finding, seen: Observation, policy: Policy) -> Finding:
    """Returns the finding with the cause behind it; symptoms and kinds that have none stay as they are."""
    spec = FINDINGS[finding.kind]
    if spec.sub_cause is None or finding.symptom_of is not None:
        return finding
    found = spec.sub_cause(finding, seen, policy)
    return msgspec.structs.replace(
        finding,
        sub_cause=found.code,
        sub_cause_text=found.text,
        evidence={**finding.evidence, **found.evidence},
    )
