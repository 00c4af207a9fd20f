"""The one sentence: the costliest cause, healthy if that is earned, or what is missing to say more."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from aorta.artefacts.analysis import DataQuality, Finding, Kind, RuleMeasurement, Verdict
from aorta.artefacts.records import blames_peer
from aorta.artefacts.unseen import Missing
from aorta.diagnosis.findings import FINDINGS, HEALTHY, INCOMPLETE, INSUFFICIENT
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import CROSS_CHECK_TOLERANCE, Policy
from aorta.units import plural

_FAILED_RANK = re.compile(r"rank (\d+) (?:was killed by|exited with) ")
"""First words of an agent's message that a rank failed."""
_MOST_OF_A_REASON = 200
"""Characters."""
_BAD_STATES = ("failed", "cancelled", "timeout")
_REMEDIES = {
    "no_step_records": "record steps: aorta profile -- YOUR_COMMAND, or 5 steps with torch.profiler",
    "not_recorded": "record steps with StepRecorder (docs/own-programs.md), or 5 steps with torch.profiler",
    "ranks_missing": "record every rank, and give aorta the files of all of them",
    "few_detailed_steps": "time every step part by part: "
    "aorta profile --override capture.detail_interval=1 -- YOUR_COMMAND",
    "no_costs": "measure it in the job: aorta profile -- YOUR_COMMAND",
    "no_breakdown": "observe communication: aorta profile -- YOUR_COMMAND",
    "time_between_steps": "put the work between steps into a step, or into a range of its own",
    "no_job_record": "run the job through aorta: aorta profile -- YOUR_COMMAND",
    "job_not_ended": "wait until the job has ended: aorta wait",
}
_MORE_TRACED = (
    "record more steps: torch.profiler.schedule(wait=1, warmup=1, active=5), and prof.step() after each step"
)
_TRACE = "record all ranks with torch.profiler, which shows kernels, launches and collectives"


class Judged(Struct, frozen=True):
    """The findings after judgement, causes first."""

    findings: list[Finding]
    measured: Sequence[RuleMeasurement]
    """Every finding's answer, in order."""
    dropped: Mapping[Kind, str]
    """Kinds that passed their threshold and are no findings, with the reason."""


class JudgedVerdict(Struct, frozen=True):
    """The verdict, with the findings that it stands on."""

    verdict: Verdict
    findings: list[Finding]
    missing: list[Missing]


def verdict_of(judged: Judged, seen: Observation, policy: Policy) -> JudgedVerdict:
    """Returns the verdict and the findings, with one added where the verdict is no cause.

    A job that did not complete is `incomplete`, whatever was found until then. A run is healthy only if each
    finding that it needs was looked for.
    """
    quality, reasons = seen.quality, insufficient(judged, seen, policy)
    findings = judged.findings
    first = FINDINGS[findings[0].kind] if findings else None
    # Where ranks are missing, waiting for one of them looks like communication.
    unclear = first is not None and first.may_wait_for_missing and seen.job.ranks_missing
    cause = first.statement(findings[0], seen) if first is not None and not unclear else None
    cause = f"{cause}{_about(seen)}" if cause else None
    if seen.facts.hang is not None:
        # Traces know of no standstill: they need not import what judges it.
        from aorta.diagnosis.hang import hang_finding, hang_verdict

        ending = f" The job did not complete ({quality.state})." if quality.state in _BAD_STATES else ""
        hang = hang_verdict(seen.facts.hang, ending)
        return JudgedVerdict(hang, [hang_finding(seen.facts.hang, seen.job.nodes(hang.ranks)), *findings], [])
    if quality.state in _BAD_STATES:
        return _incomplete(judged, seen, cause)
    if first is not None and cause is not None:
        return JudgedVerdict(
            Verdict(kind=first.kind, statement=cause, ranks=findings[0].ranks), list(findings), []
        )
    if not reasons:
        return JudgedVerdict(Verdict(kind=HEALTHY, statement=_healthy(judged, seen), ranks=[]), [], [])
    words = "; ".join(text for _, text, _ in reasons)
    if unclear:
        words += (
            f"; the {findings[0].value:.0f} % of the step in communication may be waiting for the other ranks"
        )
    codes = [code for code, _, _ in reasons]
    missing = [Missing(what=text, command=remedy) for _, text, remedy in reasons]
    actions = [*_more_steps(codes, seen), *dict.fromkeys(item.command for item in missing)]
    finding = _none(INSUFFICIENT, words, {"reasons": codes}, actions)
    statement = f"There is not enough data for a verdict: {words}."
    return JudgedVerdict(
        Verdict(kind=INSUFFICIENT, statement=statement, ranks=[]), [finding, *findings], missing
    )


def _incomplete(judged: Judged, seen: Observation, cause: str | None) -> JudgedVerdict:
    quality = seen.quality
    words = f"the job did not complete ({quality.state})" + (
        f": {_failure(quality)}" if quality.failure else ""
    )
    progress = (
        "it left no step records"
        if quality.last_step is None
        else f"the last recorded step was {quality.last_step}"
    )
    if quality.standstill_s is not None and quality.last_step is not None:
        progress = f"no progress after step {quality.last_step} for {quality.standstill_s:.0f} s"
    until = f" Until then: {cause}" if cause else " Until then, nothing passed its threshold."
    if quality.last_step is None:
        until = ""
    actions = ["look at the ranks' logs and at the problems under data quality, then run again"]
    evidence = {
        "reasons": [f"job_{quality.state}"],
        "state": quality.state,
        "last_step": quality.last_step,
        "standstill_s": quality.standstill_s,
    }
    failed = _failed_ranks(quality)
    finding = structs.replace(
        _none(INCOMPLETE, f"{words}; {progress}", evidence, actions),
        ranks=failed,
        nodes=seen.job.nodes(failed) if failed else [],
    )
    statement = f"{words[0].upper()}{words[1:]}; {progress}.{until}"
    ranks = failed or (judged.findings[0].ranks if cause else [])
    verdict = Verdict(kind=INCOMPLETE, statement=statement, ranks=ranks)
    return JudgedVerdict(verdict, [finding, *judged.findings], [])


def _healthy(judged: Judged, seen: Observation) -> str:
    steps = f"over {seen.steps.words()} of {plural(seen.quality.ranks_seen, 'rank')}"
    why = "; ".join(f"{FINDINGS[kind].subject} ({reason})" for kind, reason in judged.dropped.items())
    if why:
        one = len(judged.dropped) == 1
        passes = "One measurement passes its threshold" if one else "Measurements pass their thresholds"
        return f"No bottleneck {steps}. {passes} and {'is' if one else 'are'} not the cause: {why}."
    return f"No bottleneck: nothing passes its threshold {steps}."


def _about(seen: Observation) -> str:
    """Returns words that limit the answer to the capture, if it has too few whole steps."""
    if not seen.steps.of_capture:
        return ""
    took = f" of {seen.steps.step_ms:.0f} ms" if seen.steps.costs else ""
    count = plural(seen.steps.breakdown.steps, "window")
    about = f" This verdict describes the capture ({count}{took}), which shows fewer than three whole steps."
    return f"{about} Mark steps with prof.step()."


def _none(kind: Kind, cause: str, evidence: dict[str, Any], actions: list[str]) -> Finding:
    """Returns the finding of a verdict that is no cause."""
    return Finding(
        kind=kind,
        severity="warning",
        cause=cause,
        ranks=[],
        nodes=[],
        value=None,
        threshold=None,
        unit="",
        evidence=evidence,
        estimated_speedup=None,
        actions=actions,
    )


def insufficient(judged: Judged, seen: Observation, policy: Policy) -> list[tuple[str, str, str]]:
    """Returns reason codes, with words and what to do, why the absence of findings would prove nothing."""
    found = [(code, text, _remedy(code, seen, policy)) for code, text in _too_little(seen, policy)]
    if found:
        return found
    for answer in judged.measured:
        needed = FINDINGS[answer.kind].needed
        # A remedy of what was not found: another cause has to account for it, and none was found.
        open_question = answer.answer == "not_measurable" or (not answer.fired and answer.remedy is not None)
        if open_question and needed is not None and needed(seen, policy):
            words = (answer.reason or "not measured").removeprefix("not measured: ").removeprefix("ok: ")
            text = f"{FINDINGS[answer.kind].subject} could not be measured: {words}"
            found.append((f"not_measurable_{answer.kind}", text, answer.remedy or _TRACE))
    return found


def _remedy(code: str, seen: Observation, policy: Policy) -> str:
    """Returns what would collect the missing data, with a command to type if there is one."""
    if code != "few_steady_steps":
        return _REMEDIES[code]
    if seen.steps.traced:
        return _MORE_TRACED
    lacking = plural(policy.min_steady_steps - seen.steps.breakdown.steps, "more step")
    return (
        f"record at least {lacking}, with a larger --steps or without --steps: aorta profile -- YOUR_COMMAND"
    )


def _too_little(seen: Observation, policy: Policy) -> list[tuple[str, str]]:
    quality, steps, reasons = seen.quality, seen.steps, []
    least = policy.min_steady_steps
    if quality.ranks_seen == 0:
        why = {one.note for one in seen.host.stacks.values() if one.note is not None}
        text = f"no rank left {steps.source}" + (f": {min(why)}" if why else "")
        reasons.append(("not_recorded" if why else "no_step_records", text))
    elif quality.ranks_expected is None or quality.ranks_seen < quality.ranks_expected:
        expected = quality.ranks_expected if quality.ranks_expected is not None else "an unknown number of"
        reasons.append(("ranks_missing", f"{quality.ranks_seen} of {expected} ranks left {steps.source}"))
    if quality.ranks_seen and steps.breakdown.steps < least:
        code = "few_detailed_steps" if (steps.steady or 0) >= least else "few_steady_steps"
        reasons.append((code, f"all ranks have {steps.words()} in common, {least} are needed"))
    elif quality.ranks_seen and not steps.costs and steps.breakdown.per_rank:
        reasons.append(("no_costs", steps.costs_absent))
    elif quality.ranks_seen and len(steps.costs) < quality.ranks_seen:
        reasons.append(("no_breakdown", f"the {steps.source} of some ranks contain no breakdown of the step"))
    if steps.between_share is not None and steps.between_share > CROSS_CHECK_TOLERANCE:
        share = 100.0 * steps.between_share
        reasons.append(
            ("time_between_steps", f"{share:.0f} % of the time is between steps, which no record covers")
        )
    if not seen.job.known:
        reasons.append(("no_job_record", "there is no manifest, marker or accounting record of the job"))
    if quality.state == "running":
        reasons.append(("job_not_ended", "the job has not ended, according to its own markers"))
    return reasons


def _failed_ranks(quality: DataQuality) -> list[int]:
    """Returns the rank that failed first, where its node's agent named one and its error names no other."""
    match = _FAILED_RANK.match(quality.failure or "")
    return [int(match[1])] if match and not blames_peer(quality.failure or "") else []


def _failure(quality: DataQuality) -> str:
    """Returns the first line of the reason why the job failed, if it is a sentence."""
    return textwrap.shorten((quality.failure or "").splitlines()[0], _MOST_OF_A_REASON)


def _more_steps(codes: Sequence[str], seen: Observation) -> list[str]:
    """Returns the setting that gives more steps, if the trainer's configuration is in use."""
    if seen.job.config is None:
        return []
    if "few_detailed_steps" in codes:
        return [
            "time more steps part by part: a smaller capture.detail_interval (1: all), or a larger "
            "training.max_steps"
        ]
    return ["train for more steps: training.max_steps"] if "few_steady_steps" in codes else []
