"""Predicts by replay what removing each finding would gain."""

from __future__ import annotations

import math

import msgspec

from aorta.artefacts.analysis import Finding, Speedup
from aorta.artefacts.measured import Interval
from aorta.artefacts.replayed import WhatIf
from aorta.averages import fmean
from aorta.diagnosis.finding import FindingSpec, PredictedRemoval
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics import another_run
from aorta.units import rank_words

HIDDEN = 0.1
"""Other causes hide a cause if removing it alone gains less than this share of what removing all of them
gains.
"""
MORE_AGAIN = 1.5
"""The next cause is mentioned if removing it as well gains at least this many times as much."""


def predicted(
    spec: FindingSpec, finding: Finding, seen: Observation, policy: Policy
) -> tuple[Finding, WhatIf | None]:
    """Returns the finding with its speed-up by replay; as it is where nothing can be predicted for it.

    With fewer steps than an interval takes, the range stays that of the finding's bounds. Where runs of the
    same thing are known, the interval is no narrower than they lie apart.
    """
    replays = seen.model.usable if seen.model else None
    if finding.symptom_of is not None or spec.removes is None:
        return finding, None
    if replays is None:
        return _with_exchanges(spec, finding, seen), None
    removed = spec.removes(finding, seen, replays)
    if removed is None:
        return finding, None
    removed, finding = _with_hiding(spec, removed, finding, seen, policy)
    found, apart = removed.found, another_run.apart(seen.repeats)
    limit = (
        f"; the next limit is host work, which takes {found.hosts_ms:.1f} ms per step"
        if found.hosts_ms
        else ""
    )
    if found.bound:
        limit += "; the time for host work is not known on every rank, and may be the next limit"
    what = WhatIf(
        kind=finding.kind,
        removed=removed.words + limit,
        ranks=finding.ranks,
        step_ms=found.step_ms,
        step_ms_interval=another_run.at_least(found.step_ms_interval, found.step_ms, apart),
        speedup=found.speedup,
        speedup_interval=another_run.at_least(found.speedup_interval, found.speedup, apart),
        alone_interval=found.speedup_interval,
        effect_interval=found.effect_interval,
        bound=found.bound,
    )
    return msgspec.structs.replace(
        finding, estimated_speedup=_speedup(finding, removed, what.speedup_interval)
    ), what


def _with_exchanges(spec: FindingSpec, finding: Finding, seen: Observation) -> Finding:
    """Returns the finding with exchanges in the upper bound of its gain, if a replay was made and missed.

    What the replay misses is that exchanges take longer in some steps than in others. Ranks that come late
    may be the reason, so exchanges may become faster with the cause removed, too.
    """
    bounds, known = finding.estimated_speedup, seen.model is not None and seen.model.replays is not None
    if (
        not known
        or not spec.waits_for
        or bounds is None
        or bounds.expected is not None
        or not seen.steps.costs
    ):
        return finding
    step_ms = seen.steps.step_ms
    left = step_ms / bounds.high - fmean(item.transfer_ms for item in seen.steps.costs)
    if left <= 0:
        return finding
    return msgspec.structs.replace(
        finding, estimated_speedup=msgspec.structs.replace(bounds, high=step_ms / left)
    )


def _speedup(finding: Finding, removed: PredictedRemoval, interval: Interval | None) -> Speedup | None:
    found, bounds = removed.found, finding.estimated_speedup
    expected, limit = found.speedup, removed.limit.speedup if removed.limit else None
    if found.bound:
        return Speedup(low=1.0, high=max(expected, interval.high if interval else expected))
    if interval is not None:
        low, high = interval.low, interval.high
        return Speedup(
            low=low, high=high, expected=expected, step_ms=found.step_ms, basis="replay", limit=limit
        )
    if bounds is None:
        return None
    # What a cause takes in all is not gained where the next limit comes before.
    last = found if found.hosts_ms else removed.limit
    most = last.speedup if last is not None and last.hosts_ms else bounds.high
    low, high = min(bounds.low, expected), max(most, expected)
    return Speedup(low=low, high=high, expected=expected, step_ms=found.step_ms, basis="bounds", limit=limit)


def within_noise(spec: FindingSpec, what: WhatIf, seen: Observation, policy: Policy) -> str | None:
    """Returns why a finding's effect is no effect, in words; None if it has one.

    The gain of these very steps, resampled, must lie above the finding's least gain, or above none at all.
    If the same program ran at least four times before, the gain must also exceed the difference between
    these runs, without the causes that were found in them. A smaller gain can occur even if nothing changed.
    What is not known of those causes is no difference between runs.
    """
    return _noise(spec, what.speedup, what.effect_interval, seen, policy)


def _noise(
    spec: FindingSpec, speedup: float, interval: Interval | None, seen: Observation, policy: Policy
) -> str | None:
    least = spec.least_gain_pct(policy) if spec.least_gain_pct is not None else 0.0
    if interval is not None and _share(interval.low) <= least:
        gained = f"replayed without it, {_percent(interval)} of the step would be gained"
        return f"within noise: {gained}" + (f", and {least:g} % at least would have to be" if least else "")
    spread = another_run.by_chance(seen.repeats)
    if spread is None or math.log(speedup) > spread:
        return None
    gained = f"replayed without it, {_share(speedup):.0f} % of the step would be gained"
    runs = f"{len(seen.repeats)} other runs of the same program"
    return f"within noise: {gained}, and by {runs} {_share(math.exp(spread)):.0f} % vary by chance"


def _percent(interval: Interval) -> str:
    return f"{_share(interval.low):.0f} to {_share(interval.high):.0f} %"


def _share(speedup: float) -> float:
    """Returns the gain in percent of the step."""
    return 100.0 * (1.0 - 1.0 / speedup)


def _with_hiding(
    spec: FindingSpec, removed: PredictedRemoval, finding: Finding, seen: Observation, policy: Policy
) -> tuple[PredictedRemoval, Finding]:
    """Returns what goes where other ranks are as slow by something else, which hides what the finding's own
    gain.

    Where it gains next to nothing by itself and more together with those, both go. Where it gains by itself,
    an action says what holds the step up next, if that is worth half as much again.
    """
    parts, replays = removed.parts, seen.model.usable if seen.model else None
    hiding = replays.hidden_by(parts, finding.ranks) if replays and parts and finding.ranks else []
    if replays is None or not hiding:
        return removed, finding
    both, alone = replays.together(parts, finding.ranks, hiding), removed.found
    if _noise(spec, both.speedup, both.effect_interval, seen, policy) is not None:
        return removed, finding
    more = f"{removed.hidden_behind} of {rank_words(hiding)}"
    noise = _noise(spec, alone.speedup, alone.effect_interval, seen, policy)
    if noise is not None or _share(alone.speedup) < HIDDEN * _share(both.speedup):
        said = f"fix both causes: fixing this one alone gains almost nothing, because of the longer {more}"
        actions = [said, *finding.actions]
        return (
            PredictedRemoval(f"{removed.words} and the longer {more}", both),
            msgspec.structs.replace(finding, actions=actions),
        )
    if _share(both.speedup) < MORE_AGAIN * _share(alone.speedup):
        return removed, finding
    said = f"then look at the longer {more}, which is the next limit: {both.speedup:.2f}× without both"
    return removed, msgspec.structs.replace(finding, actions=[*finding.actions, said])
