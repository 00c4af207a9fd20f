"""Tells causes from symptoms among the findings, and what each costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from aorta.artefacts.analysis import Finding, Kind
from aorta.diagnosis.finding import Found
from aorta.diagnosis.findings import FINDINGS, kind_name
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy

NO_FIX = "no separate fix"
"""Begins the only action of a symptom."""


def explain(found: Found, seen: Observation, policy: Policy) -> list[Finding]:
    """Returns the findings with symptoms marked: causes first, the costliest first.

    A symptom has no speed-up of its own: it goes with its cause.
    """
    symptoms = _symptoms(found, seen, policy)
    marked = [
        msgspec.structs.replace(
            finding,
            symptom_of=symptoms[kind],
            estimated_speedup=None,
            actions=[f"{NO_FIX}: this goes away once {kind_name(symptoms[kind])} is fixed"],
        )
        if kind in symptoms
        else finding
        for kind, finding in found.items()
    ]
    return sorted(marked, key=lambda item: (item.symptom_of is not None, -weight(item, marked, seen)))


def _symptoms(found: Found, seen: Observation, policy: Policy) -> dict[Kind, Kind]:
    """Returns each symptom's cause.

    A finding names its own cause, or another finding claims it as a symptom. If a cause is itself a symptom,
    its symptoms are passed on. A finding that yields to any cause that takes time is a symptom of the
    costliest one. If there is none, it is a symptom of a cause that takes no time by itself but has
    symptoms.
    """
    specs = [spec for kind, spec in FINDINGS.items() if kind in found]
    waits = _waits(found, seen)
    symptoms = {
        spec.kind: cause for spec in specs if spec.symptom_of and (cause := spec.symptom_of(waits, seen))
    }
    for spec, other in itertools.permutations(specs, 2):
        if spec.claims is not None and spec.claims(other, found[other.kind], found, seen, policy):
            symptoms[other.kind] = spec.kind
    for _ in symptoms:
        symptoms = {kind: symptoms.get(cause, cause) for kind, cause in symptoms.items()}
    costs = {
        spec.kind: spec.cost(seen)
        for spec in specs
        if spec.cost and not spec.yields and spec.kind not in symptoms
    }
    cause = max(costs, key=lambda kind: costs[kind], default=next(iter(symptoms.values()), None))
    yielding = [spec.kind for spec in specs if spec.yields and spec.kind not in symptoms]
    return symptoms | (dict.fromkeys(yielding, cause) if cause is not None else {})


def _waits(found: Found, seen: Observation) -> dict[Kind, float]:
    """Returns how much of ranks' waits in collectives each finding explains, ms per step."""
    waits: dict[Kind, float] = {}
    for kind, spec in reversed(FINDINGS.items()):
        if kind in found and spec.waits is not None:
            taken = sum(ms for other, ms in waits.items() if FINDINGS[other].waits_for == spec.waits_for)
            waits[kind] = spec.waits(found, seen, taken)
    return {kind: waits[kind] for kind in FINDINGS if waits.get(kind, 0.0) > 0}


def cost_ms(finding: Finding, seen: Observation) -> float:
    """Returns the mean ms per step and rank that a finding takes; 0 where it takes none by itself."""
    cost = FINDINGS[finding.kind].cost
    return cost(seen) if cost is not None else 0.0


def weight(finding: Finding, findings: Sequence[Finding], seen: Observation) -> float:
    """Returns its cost; what takes no time by itself weighs what its costliest symptom does."""
    if FINDINGS[finding.kind].cost is not None:
        return cost_ms(finding, seen)
    return max((cost_ms(item, seen) for item in findings if item.symptom_of == finding.kind), default=0.0)


def with_costs(findings: Sequence[Finding], seen: Observation) -> list[Finding]:
    """Returns the findings with what they cost, causes first, the costliest first.

    The cost of a cause is its time, but at most the gain of a replay without all of it. If the host work of
    other ranks also fills the step, the last rank takes the whole step but costs almost nothing.
    Causes are sorted by what replays without them gain, if all were replayed. A mean over two ranks would
    halve the wait of one of them.
    """
    made, gains = [], dict[Kind, float]()
    for finding in findings:
        cost, gained = weight(finding, findings, seen), finding.estimated_speedup
        if gained is not None and gained.expected is not None and seen.steps.costs:
            without = max(gained.expected, gained.limit or 0.0)
            cost = min(cost, max(seen.steps.step_ms * (1.0 - 1.0 / without), 0.0))
            gains[finding.kind] = seen.steps.step_ms * (1.0 - 1.0 / gained.expected)
        made.append(msgspec.structs.replace(finding, lost_ms_per_step=cost if cost > 0 else None))
    if any(item.kind not in gains for item in made if item.symptom_of is None):
        gains = {}
    return sorted(
        made,
        key=lambda item: (
            item.symptom_of is not None,
            -gains.get(item.kind, 0.0),
            -(item.lost_ms_per_step or 0.0),
        ),
    )


def unsupported(findings: Sequence[Finding], seen: Observation, policy: Policy) -> dict[Kind, str]:
    """Returns findings that nothing supports once waits are charged to their causes, and why."""
    return {
        item.kind: why
        for item in findings
        if (check := FINDINGS[item.kind].unsupported) is not None
        and item.symptom_of is None
        and (why := check(item, seen, policy)) is not None
    }


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
