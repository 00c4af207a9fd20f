"""The form of a finding: one specification object, and the arithmetic that several findings share.

Each module of `aorta.diagnosis.findings` exports one `FindingSpec`. Every field is required, so a missing
field fails at import and in the type check. `None` means that the field does not apply to the finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from aorta.artefacts.analysis import Finding, Kind, RuleMeasurement, Speedup
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.charges import Cause
from aorta.metrics.replay_model import Part
from aorta.metrics.whatif import Prediction, Replays

STEP_SHARE = "% of step"
NOT_DETERMINED = "not_determined"
MOST = 0.5
"""A part of at least this share of the whole is called most of it."""

Found = Mapping[Kind, Finding]
"""Findings that passed their threshold, in the order of the report."""


class RuleResult(NamedTuple):
    """The result of a finding's measurement: found, not found, or not measurable."""

    measured: RuleMeasurement
    """The value and its threshold, or the reason why there is no value and what would give one."""
    finding: Finding | None = None
    """The finding. None if it was not found or not measurable; `measured.answer` tells which."""


class SubCause(Struct, frozen=True):
    """A code, the same in words, and what was measured."""

    code: str
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class PredictedRemoval(Struct, frozen=True):
    """The change that the replay makes, in words, and its predicted effect."""

    words: str
    found: Prediction
    limit: Prediction | None = None
    """Without all of the cause, where only its most costly part goes."""
    parts: tuple[Part, ...] = ()
    """Parts that the finding's ranks take longer for than others. Empty if no other rank can hide the gain.
    """
    hidden_behind: str = ""
    """Other reasons, in words, why ranks may be slow and hide the gain."""


class FindingSpec(Struct, frozen=True, kw_only=True):
    """Everything that aorta knows about one kind of finding."""

    kind: Kind
    name: str
    """The finding's name in tables and documents."""
    subject: str
    """The finding's name as the subject of a sentence."""
    value: str
    """The value that is compared with the first threshold, in words."""
    value_of: str
    """The step that a value in % of step is a share of: `the mean step`; empty: `value` tells."""
    measured_from: str
    """The source of that value."""
    order: int
    """Its place in the report. Of two findings that claim the same symptom the later one has it."""
    thresholds: tuple[str, ...]
    """Keys of the configuration's `thresholds` that decide it."""
    fires_below: bool
    """True if a value below the threshold is the finding, False if a value above it is."""
    measure: Callable[[Observation, Policy], RuleResult]
    cost: Callable[[Observation], float] | None
    """Mean ms per step and rank that the cause takes. None if it takes no time by itself; it then weighs as
    much as its costliest symptom does."""
    waits_for: tuple[Cause, ...]
    """The work of other ranks that ranks wait for in collectives because of it. Empty if there are none."""
    of_host_time: bool
    """True if its value is host time, which a profiler adds to."""
    of_kernel_kinds: bool
    """True if its value depends on what kernels do: unclassified GPU time may change it."""
    waits: Callable[[Found, Observation, float], float] | None
    """Returns the part of all ranks' waits for that work that the finding explains, in ms per step. The last
    argument is the part of the same waits that findings of a later place explain."""
    symptom_of: Callable[[Mapping[Kind, float], Observation], Kind | None] | None
    """The finding that explains this one, given the waits that each finding explains."""
    claims: Callable[[FindingSpec, Finding, Found, Observation, Policy], bool] | None
    """Returns True if another finding is a symptom of this one."""
    yields: bool
    """True if the finding is a symptom of any cause that takes time."""
    may_wait_for_missing: bool
    """True if the finding is no verdict while ranks are missing: the time may be waits for them."""
    sub_causes: Mapping[str, str]
    """Code to one sentence: every cause behind the cause that `sub_cause` may return."""
    sub_cause: Callable[[Finding, Observation, Policy], SubCause] | None
    compares_ranks: tuple[str, ...]
    """The sub-causes that say why only some ranks are slow. Empty if none of them does."""
    removes: Callable[[Finding, Observation, Replays], PredictedRemoval | None] | None
    """Returns what the replay removes to predict the gain."""
    least_gain_pct: Callable[[Policy], float] | None
    """Least gain of the replay, in % of the step; None: anything above its noise."""
    unsupported: Callable[[Finding, Observation, Policy], str | None] | None
    """Why a value above the threshold is no cause once waits are charged. None if it is one."""
    parts: Callable[[Finding, Observation], tuple[str, ...]] | None
    """The parts of the step in which sampled stacks tell where the time goes. None means none of them."""
    needed: Callable[[Observation, Policy], bool] | None
    """Returns True if a run is healthy only where this finding was looked for. None: never required."""
    alike: tuple[Kind, str] | None
    """Another kind that would look the same where it is not measurable, and why. None if there is none."""
    lowers: Mapping[str, int]
    """The factors of scaling efficiency that it lowers, as `metrics.scaling_loss` calls them, each with its
    place among the findings that do: 1 is the likeliest."""
    actions: Callable[[Finding, Observation], list[str]]
    statement: Callable[[Finding, Observation], str]


def unknown(text: str) -> SubCause:
    """Returns that nothing that was measured tells; `text` says what is missing."""
    return SubCause(NOT_DETERMINED, text)


def not_measured(
    kind: Kind, threshold: float, unit: str, reason: str, *, remedy: str | None = None
) -> RuleResult:
    """Returns the answer of a finding that has no value.

    Args:
        kind: of the finding.
        threshold: that a value would have been compared with.
        unit: of both.
        reason: why there is no value: `not measured: ...`.
        remedy: what would give one, as a command or a key to set.
    """
    return RuleResult(
        RuleMeasurement(
            kind=kind,
            value=None,
            threshold=threshold,
            unit=unit,
            fired=False,
            reason=reason,
            answer="not_measurable",
            remedy=remedy,
        )
    )


def measured(
    kind: Kind, value: float, threshold: float, unit: str, *, fired: bool, reason: str | None = None
) -> RuleMeasurement:
    """Returns a value with its threshold."""
    return RuleMeasurement(
        kind=kind,
        value=value,
        threshold=threshold,
        unit=unit,
        fired=fired,
        reason=reason,
        answer="found" if fired else "not_found",
    )


def found(
    answer: RuleMeasurement,
    cause: str,
    evidence: dict[str, Any],
    speedup: Speedup | None,
    *,
    ranks: Sequence[int] = (),
    nodes: Sequence[str] = (),
    critical: bool | None = None,
) -> RuleResult:
    """Returns the answer of a finding that was found; its specification says what to do.

    Args:
        answer: value and threshold.
        cause: in words.
        evidence: what was measured.
        speedup: bounds of the gain. None if not known.
        ranks: that have the cause. Empty means all.
        nodes: of these ranks.
        critical: None: it is critical where its value is most of the step.
    """
    grave = (answer.value or 0.0) >= 100.0 * MOST if critical is None else critical
    return RuleResult(
        answer,
        Finding(
            kind=answer.kind,
            severity="critical" if grave else "warning",
            cause=cause,
            ranks=list(ranks),
            nodes=list(nodes),
            value=answer.value,
            threshold=answer.threshold,
            unit=answer.unit,
            evidence=evidence,
            estimated_speedup=speedup,
            actions=[],
        ),
    )


def removal_to_threshold(step_ms: float, part_ms: float, threshold_pct: float) -> float:
    """Returns the ms to remove from a part so that it is `threshold_pct` of the step that is then left.

    (part − x) / (step − x) = t gives x = (part − t·step) / (1 − t).
    """
    share = threshold_pct / 100.0
    return max((part_ms - share * step_ms) / (1.0 - share), 0.0) if share < 1.0 else 0.0


def gain(step_ms: float, low_ms: float, high_ms: float) -> Speedup | None:
    """Returns step now over step without `low_ms` to `high_ms` of it; None where nothing would be left."""
    low_ms, high_ms = sorted((max(low_ms, 0.0), max(high_ms, 0.0)))
    if high_ms >= step_ms:
        return None
    return Speedup(low=step_ms / (step_ms - low_ms), high=step_ms / (step_ms - high_ms))


def saved_words(step_ms: float, speedup: Speedup, form: Callable[[float], str] | None = None) -> str | None:
    """Returns what a step saves without the cause: `up to 32.6 of 55.3 ms per step`.

    A replay expects one number. Bounds say two numbers, or only the upper one. None if nothing is saved.
    `form` writes a number of ms, with three digits where there is none.
    """
    form = form or _ms
    most = 1.0 - 1.0 / speedup.high
    part = most if speedup.expected is None else 1.0 - 1.0 / speedup.expected
    if part < 0.0:
        return None
    of = f"of {form(step_ms)} ms per step"
    if speedup.expected is None:
        return f"up to {form(step_ms * most)} {of}"
    if speedup.basis != "bounds":
        return f"{form(step_ms * part)} {of}"
    least, limit = form(step_ms * part), form(step_ms * most)
    return f"{least} {of}" if most <= part or least == limit else f"{least} to {limit} {of}"


def saved_share(speedup: Speedup) -> str:
    """Returns the same in percent of the step: `42 %`, or `20 to 50 %` where there are two bounds."""
    most = 1.0 - 1.0 / speedup.high
    part = most if speedup.expected is None else 1.0 - 1.0 / speedup.expected
    low, high = (f"{100 * share:.0f}" for share in (part, most))
    one = speedup.expected is None or speedup.basis != "bounds" or most <= part or low == high
    return f"{low} %" if one else f"{low} to {high} %"


def _ms(value: float) -> str:
    """Three digits, because the share that a reader works out from 7.2 of 14.5 ms differs from that of 7.15
    ms."""
    if value >= 10.0 or value == 0.0:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1.0 else f"{value:.2g}"


def _whole_ms(value: float) -> str:
    """A number for a headline, to whole ms; below 10 ms with three digits."""
    return f"{value:.0f}" if value >= 10.0 else _ms(value)


def cost_sentence(finding: Finding, cost_ms: float, seen: Observation) -> str:
    """Returns the sentence that says what a finding costs: what a step saves without the finding.

    Args:
        finding: with its predicted speed-up; without one its measured cost is said.
        cost_ms: that cost, the mean over ranks.
        seen: what was observed, for the mean step.
    """
    step_ms, speedup = seen.steps.step_ms, finding.estimated_speedup
    saved = saved_words(step_ms, speedup, _whole_ms) if speedup is not None else None
    if saved is not None:
        assert speedup is not None
        about = "about " if speedup.basis != "bounds" and speedup.expected is not None else ""
        return f"That costs {about}{saved}."
    return f"Averaged over all ranks, that takes {_ms(cost_ms)} of {_ms(step_ms)} ms per step."


def value_words(finding: Finding) -> str:
    """Returns the finding's value, for its sentence."""
    return "?" if finding.value is None else f"{finding.value:.0f}"
