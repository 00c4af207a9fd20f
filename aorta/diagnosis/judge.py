"""One observation and one policy to an analysis: the cause that costs the most time, with its symptoms."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from aorta.artefacts.analysis import Analysis, Kind
from aorta.diagnosis.actions import with_actions
from aorta.diagnosis.finding import RuleResult
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.prediction import predicted, within_noise
from aorta.diagnosis.rank import blame_list
from aorta.diagnosis.symptoms import explain, unsupported, with_costs, with_sub_cause
from aorta.diagnosis.unseen import beside_unseen
from aorta.diagnosis.verdict import Judged, verdict_of
from aorta.diagnosis.where import with_where
from aorta.metrics.mesh_groups import shown_mesh


def judge(seen: Observation, policy: Policy) -> Analysis:
    """Returns the analysis of an observation; whatever is missing, there is an answer."""
    answers = {kind: beside_unseen(spec, spec.measure(seen, policy), seen) for kind, spec in FINDINGS.items()}
    return weigh(answers, seen, policy)


def weigh(answers: Mapping[Kind, RuleResult], seen: Observation, policy: Policy) -> Analysis:
    """Returns the analysis that the answers of the findings come to.

    A finding is dropped if the interval of its replayed gain includes zero, or if nothing supports it once
    waits are charged to their causes. Its answer says so.
    """
    dropped: dict[Kind, str] = {}
    found = {kind: with_actions(answer.finding, seen) for kind, answer in answers.items() if answer.finding}
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
        found = {kind: finding for kind, finding in found.items() if kind not in noise}
    measured = [
        structs.replace(item.measured, fired=False, answer="not_found", reason=dropped[kind])
        if kind in dropped
        else item.measured
        for kind, item in answers.items()
    ]
    caused = [with_sub_cause(item, seen, policy) for item in with_costs([made for made, _ in pairs], seen)]
    judged = Judged([with_where(FINDINGS[item.kind], item, seen) for item in caused], measured, dropped)
    said, model, rows = verdict_of(judged, seen, policy), seen.model, seen.steps.breakdown.per_rank
    return Analysis(
        **structs.asdict(seen.facts),
        verdict=said.verdict,
        findings=said.findings,
        measured=measured,
        missing=said.missing,
        unseen=list(seen.steps.unseen),
        breakdown=seen.steps.breakdown,
        blame=blame_list(seen.steps.waits),
        utilization=seen.monitored.utilization,
        data_quality=seen.quality,
        thresholds=policy.as_dict(),
        replay=model.record([what for _, what in pairs if what]) if model else None,
        pop=model.pop(rows, cuda=seen.job.cuda) if model else None,
        lateness=model.lateness if model else None,
        clocks=list(model.clocks) if model else [],
        mesh=shown_mesh(seen.mesh.mesh if seen.mesh else None, seen.groups),
        slowdown=seen.mesh.slowdown if seen.mesh else None,
    )
