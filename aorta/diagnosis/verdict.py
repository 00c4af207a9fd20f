"""One verdict a run: the cause that costs the most time, with its symptoms under it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from aorta.artefacts.analysis import DataQuality, Finding, Kind, Measured, Verdict, WhatIf
from aorta.diagnosis.context import Answer, Context
from aorta.diagnosis.memory import RETRIES, SWAPPED, is_symptom
from aorta.diagnosis.prediction import predicted, within_noise
from aorta.diagnosis.rank import rank_words
from aorta.diagnosis.subcauses import with_sub_cause
from aorta.units import plural

Rule = Callable[[Context], Answer]
"""One function a finding: what it measured, and what it found."""

_NAMES: dict[Kind, str] = {
    "data_loading": "Data loading",
    "communication": "Communication",
    "straggler": "Waiting for a slower rank",
    "gpu_underutilization": "GPU under-utilisation",
    "host_bound": "The host",
    "memory_pressure": "Memory pressure",
}
_TAKING_TIME = ("data_loading", "straggler", "communication", "host_bound")
_MOST_OF_A_REASON = 200
"""Characters."""
_ENDED_BADLY = {"failed": "job_failed", "running": "job_not_ended"}


def cost_ms(finding: Finding, context: Context) -> float:
    """Mean ms a step and rank that the finding's cause takes; 0 for memory: full, it still takes no time."""
    costs = context.costs
    if finding.kind == "data_loading":
        return fmean(item.loading_ms for item in costs)
    if finding.kind == "straggler":
        return fmean(item.lateness_ms for item in costs)
    if finding.kind == "communication":
        return fmean(item.transfer_ms for item in costs)
    if finding.kind == "host_bound":
        return context.host_ms
    if finding.kind == "gpu_underutilization" and costs:
        return fmean(item.step_ms - item.compute_ms for item in costs)
    return 0.0


def explain(findings: Sequence[Finding], context: Context) -> list[Finding]:
    """Mark symptoms: communication that is mostly waits for a cause found, and an idle GPU under any cause.

    Where allocations on the GPUs fail again and again, or a cause's nodes wait for swap, it is a symptom of
    full memory, which then comes where it would.

    A symptom has no speed-up of its own: it goes with its cause. Nor has communication where ranks are
    missing: an unknown part of it is waiting for them. Causes come first, the costliest first.
    """
    findings = [_unseen(finding) if context.ranks_missing else finding for finding in findings]
    by_kind = {finding.kind: finding for finding in findings}
    late = by_kind.get("straggler")
    compute, host = (sum(item.charged(cause) for item in context.costs) for cause in ("compute", "host"))
    # Hosts that all are slow are slow by turns: waiting for them is not one rank's doing.
    by_turns = "host_bound" in by_kind and (late is None or not late.ranks)
    own = sum(item.own_host_wait_ms for item in context.costs)
    blamed: dict[Kind, float] = {
        "data_loading": sum(item.charged("data_loading") for item in context.costs),
        "straggler": compute + host - (max(host, own) if by_turns else own),
        "host_bound": max(host, own) if by_turns else own,
    }
    symptoms: dict[Kind, Kind] = {}
    waits: dict[Kind, float] = {kind: lost for kind, lost in blamed.items() if kind in by_kind and lost > 0}
    if "communication" in by_kind and sum(waits.values()) > sum(item.transfer_ms for item in context.costs):
        symptoms["communication"] = max(waits, key=lambda kind: waits[kind])
    if late is not None and by_turns and host >= compute:
        symptoms["straggler"] = "host_bound"
        if symptoms.get("communication") == "straggler":
            symptoms["communication"] = "host_bound"
    if "memory_pressure" in by_kind:
        lost = {kind for kind, finding in by_kind.items() if is_symptom(finding, context)}
        symptoms |= dict.fromkeys(lost, "memory_pressure")
        if symptoms.get("communication") in lost:
            symptoms["communication"] = "memory_pressure"
    taking_time = [
        finding for finding in findings if finding.kind in _TAKING_TIME and finding.kind not in symptoms
    ]
    if "gpu_underutilization" in by_kind and taking_time:
        symptoms["gpu_underutilization"] = max(taking_time, key=lambda item: cost_ms(item, context)).kind
    elif "gpu_underutilization" in by_kind and "memory_pressure" in symptoms.values():
        symptoms["gpu_underutilization"] = "memory_pressure"
    marked = [
        msgspec.structs.replace(
            finding,
            symptom_of=symptoms[finding.kind],
            estimated_speedup=None,
            actions=[f"none of its own: it goes with its cause, {symptoms[finding.kind]}"],
        )
        if finding.kind in symptoms
        else finding
        for finding in findings
    ]
    return sorted(marked, key=lambda item: (item.symptom_of is not None, -_weight(item, marked, context)))


def _weight(finding: Finding, findings: Sequence[Finding], context: Context) -> float:
    """Its cost; full memory's is that of its symptoms."""
    of_it = [item for item in findings if item.symptom_of == finding.kind == "memory_pressure"]
    return max(cost_ms(item, context) for item in (finding, *of_it))


def _unseen(finding: Finding) -> Finding:
    """A finding of a job of which ranks are missing."""
    if finding.kind != "communication":
        return finding
    return msgspec.structs.replace(
        finding,
        estimated_speedup=None,
        actions=[
            "find out why ranks left no records, and run again: waiting for them is in this, or is all of it"
        ],
    )


def insufficient(context: Context, quality: DataQuality) -> list[tuple[str, str]]:
    """Reason codes, with words, why the absence of findings would prove nothing; empty if it does."""
    reasons = []
    if quality.ranks_seen == 0:
        reasons.append(("no_step_records", f"no rank left {context.records}"))
    elif quality.ranks_expected is None or quality.ranks_seen < quality.ranks_expected:
        expected = quality.ranks_expected if quality.ranks_expected is not None else "an unknown number of"
        reasons.append(("ranks_missing", f"{quality.ranks_seen} of {expected} ranks left {context.records}"))
    if quality.ranks_seen and context.breakdown.steps < context.policy.min_steady_steps:
        kind = "few_detailed_steps" if context.lacks_detail else "few_steady_steps"
        least = context.policy.min_steady_steps
        reasons.append((kind, f"all ranks have {context.steps()} in common, {least} are needed"))
    elif quality.ranks_seen and len(context.costs) < quality.ranks_seen:
        reasons.append(("no_breakdown", f"the {context.records} of some ranks do not break the step down"))
    if context.between_steps is not None and context.between_steps > context.policy.cross_check_tolerance:
        share = 100.0 * context.between_steps
        reasons.append(
            ("time_between_steps", f"{share:.0f} % of the time lies between steps, which no record covers")
        )
    if not context.job_known:
        reasons.append(("no_job_record", "no manifest, marker or accounting says what the job was"))
    code = _ENDED_BADLY.get(quality.state or "")
    if code:
        words = _failed(quality) if code == "job_failed" else "the job has no end yet, by its own markers"
        reasons.append((code, words))
    return reasons


def _failed(quality: DataQuality) -> str:
    """With the first line of why, as far as it says something in a sentence."""
    if quality.failure is None:
        return "the job failed"
    return f"the job failed: {textwrap.shorten(quality.failure.splitlines()[0], _MOST_OF_A_REASON)}"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What the rules and the replay make of a run."""

    verdict: Verdict
    findings: list[Finding]
    """Symptoms under their causes."""
    measured: list[Measured]
    """Every rule's answer, in order."""
    predictions: list[WhatIf]


def conclude(rules: Sequence[Rule], context: Context, quality: DataQuality) -> Conclusion:
    """The verdict, the findings and their predictions.

    A finding whose removal gains nothing by the replay, within its interval, is none: its answer says so.
    """
    answers = [rule(context) for rule in rules]
    measured = [answer for answer, _ in answers]
    dropped: dict[Kind, str] = {}
    found = {finding.kind: finding for _, finding in answers if finding is not None}
    while True:
        pairs = [predicted(finding, context) for finding in explain(list(found.values()), context)]
        noise = {what.kind: why for _, what in pairs if what and (why := within_noise(what, context))}
        noise |= no_cause([finding for finding, _ in pairs], context)
        if not noise:
            break
        dropped |= noise
        for kind in noise:
            del found[kind]
        measured = [
            msgspec.structs.replace(answer, fired=False, reason=noise[answer.kind])
            if answer.kind in noise
            else answer
            for answer in measured
        ]
    weighed = _by_worth(_with_costs([made for made, _ in pairs], context))
    findings = [with_sub_cause(item, context) for item in weighed]
    verdict, findings = judge(findings, context, quality, dropped)
    return Conclusion(verdict, findings, measured, [what for _, what in pairs if what is not None])


def no_cause(findings: Sequence[Finding], context: Context) -> dict[Kind, str]:
    """Findings that nothing supports once waits are charged to their causes, and why.

    Communication that is over its threshold only with waits for ranks that are late by turns, each of which
    is below its own threshold, is no cause; nor is lateness by turns, which is no rank's own.
    """
    found: dict[Kind, str] = {}
    for finding in findings:
        if finding.symptom_of is not None:
            continue
        if finding.kind == "communication" and context.blame_absent is None:
            transfer = 100.0 * fmean(item.transfer_ms for item in context.costs) / context.step_ms
            if transfer <= context.policy.exchange_pct:
                rest = "the rest is waiting for ranks that are late by turns"
                limit = f"threshold {context.policy.exchange_pct:g}"
                found["communication"] = f"{transfer:.1f} % of the step is exchange ({limit}), {rest}"
        if finding.kind == "straggler" and not finding.ranks:
            shared = context.evidence.cores_shared
            found["straggler"] = "ranks are late by turns, " + (
                f"and {shared}" if shared else "none stands out"
            )
    return found


def _by_worth(findings: Sequence[Finding]) -> list[Finding]:
    """Causes first, the costliest first."""
    return sorted(findings, key=lambda item: (item.symptom_of is not None, -(item.lost_ms_per_step or 0.0)))


def _with_costs(findings: Sequence[Finding], context: Context) -> list[Finding]:
    """A cause costs what it takes, and no more than a replay without all of it gains: where other ranks'
    hosts need the step as well, who is last in it takes all of it and costs next to nothing.
    """
    costs = [_worth(item, _weight(item, findings, context), context) for item in findings]
    return [
        msgspec.structs.replace(finding, lost_ms_per_step=cost if cost > 0 else None)
        for finding, cost in zip(findings, costs, strict=True)
    ]


def _worth(finding: Finding, cost: float, context: Context) -> float:
    gained = finding.estimated_speedup
    if gained is None or gained.expected is None or not context.costs:
        return cost
    without = max(gained.expected, gained.limit or 0.0)
    return min(cost, max(context.step_ms * (1.0 - 1.0 / without), 0.0))


def judge(
    findings: Sequence[Finding], context: Context, quality: DataQuality, dropped: Mapping[Kind, str]
) -> tuple[Verdict, list[Finding]]:
    """The verdict, and the findings with an `insufficient_data` one added where that is the verdict.

    Args:
        findings: causes first.
        context: the run.
        quality: what the findings stand on.
        dropped: what passed its threshold and is no finding, and why.
    """
    reasons = insufficient(context, quality)
    # Where ranks are missing, waiting for one of them looks like communication.
    unclear = context.ranks_missing and bool(findings) and findings[0].kind == "communication"
    if findings and not unclear:
        return Verdict(
            kind=findings[0].kind,
            statement=_statement(findings[0], context) + _ending(quality),
            ranks=findings[0].ranks,
        ), list(findings)
    if not reasons:
        ranks = plural(quality.ranks_seen, "rank")
        steps = f"over {context.steps()} of {ranks}"
        why = "; ".join(f"{_NAMES[kind].lower()} ({reason})" for kind, reason in dropped.items())
        if why:
            statement = f"No bottleneck {steps}. Above its threshold, but no cause: {why}.{_ending(quality)}"
        else:
            statement = f"No bottleneck: nothing passes its threshold {steps}.{_ending(quality)}"
        return Verdict(kind="healthy", statement=statement, ranks=[]), []
    words = "; ".join(text for _, text in reasons)
    if unclear:
        words += f"; the {findings[0].value:.0f} % of the step in communication may be waiting for the rest"
    codes = [code for code, _ in reasons]
    finding = Finding(
        kind="insufficient_data",
        severity="warning",
        cause=words,
        ranks=[],
        nodes=[],
        value=None,
        threshold=None,
        unit="",
        evidence={"reasons": codes},
        estimated_speedup=None,
        actions=[*_more_steps(codes, context), "read the problems under data quality, then run again"],
    )
    statement = f"The data does not suffice for a verdict: {words}."
    return Verdict(kind="insufficient_data", statement=statement, ranks=[]), [finding, *findings]


def _more_steps(codes: Sequence[str], context: Context) -> list[str]:
    """What gives more of the steps that are too few, where the trainer's configuration is in use."""
    if context.config is None:
        return []
    if "few_detailed_steps" in codes:
        return [
            "time more steps part by part: a smaller capture.detail_interval (1: all), or a larger "
            "training.max_steps"
        ]
    return ["train for more steps: training.max_steps"] if "few_steady_steps" in codes else []


def _statement(finding: Finding, context: Context) -> str:
    name = _NAMES[finding.kind]
    value = f"{finding.value:.0f}" if finding.value is not None else "?"
    limit = f"threshold {finding.threshold:g}" if finding.threshold is not None else ""
    if finding.kind == "memory_pressure":
        return f"{name}: {_memory_words(finding, limit)}."
    if finding.kind == "gpu_underutilization":
        return f"{name}: compute kernels run for {value} % of the time ({limit}): {finding.cause}."
    step = context.step_ms
    if finding.kind == "communication":
        exposed = fmean(item.exposed_comm_ms for item in context.costs)
        waits = exposed - cost_ms(finding, context)
        part = f", {waits:.1f} of it waiting for a slower rank" if waits >= 0.05 else ""
        return f"{name} takes {value} % of the step ({limit}), {exposed:.1f} of {step:.1f} ms{part}."
    if finding.kind == "host_bound":
        does = "keeps the GPU idle for" if context.cuda else "takes"
        cause = finding.cause.partition("; ")[0]  # the rest is with the finding
        return f"{name} {does} {value} % of the step ({limit}): {cause}."
    who = f" on {rank_words(finding.ranks)}"
    if finding.kind == "straggler":
        who = f" ({rank_words(finding.ranks)})" if finding.ranks else " (a different one from step to step)"
    mean = f"{cost_ms(finding, context):.1f} of {step:.1f} ms on average"
    return f"{name}{who} takes {value} % of the worst rank's step ({limit}), {mean}."


def _memory_words(finding: Finding, limit: str) -> str:
    of, used = finding.evidence["of"], finding.evidence["used_pct"]
    if finding.unit == SWAPPED:
        return f"{finding.cause}, {finding.value:.1f} MB/s ({limit})"
    if finding.unit == RETRIES:
        return f"{finding.value:.1f} allocations a step fail ({limit}), {of} is {used:.0f} % full"
    return f"{of} is {finding.value:.0f} % full at its peak ({limit})"


def _ending(quality: DataQuality) -> str:
    """What a reader must know of how the job ended."""
    return f" The job did not complete ({quality.state})." if quality.state in _BAD_STATES else ""


_BAD_STATES = ("failed", "cancelled", "timeout")
