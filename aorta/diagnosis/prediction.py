"""What each finding's removal would gain, by replay."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from aorta.artefacts.analysis import Finding, Interval, Kind, Speedup, WhatIf
from aorta.diagnosis.context import MOST_OF_HOST, Context
from aorta.diagnosis.rank import rank_words
from aorta.metrics import another_run
from aorta.metrics.replay_model import Part
from aorta.metrics.whatif import Prediction, Replays

HIDDEN = 0.1
"""A cause that gains by itself less than this share of what it gains with others is hidden by them."""
MORE_AGAIN = 1.5
"""A next cause that gains this many times as much, together with the first one, is worth saying."""
_OF_RANKS: dict[Kind, tuple[Part, ...]] = {
    "data_loading": ("data_loading",),
    "straggler": ("compute", "host"),
}
"""What a finding's ranks take longer for than others."""


@dataclass(frozen=True, slots=True)
class _Removed:
    """What goes, in words, and what that gives."""

    words: str
    found: Prediction
    limit: Prediction | None = None
    """Without all of the cause, where only its most costly part goes."""


def predicted(finding: Finding, context: Context) -> tuple[Finding, WhatIf | None]:
    """The finding with its speed-up by replay; as it is where nothing can be predicted for it.

    With fewer steps than an interval takes, the range stays that of the finding's bounds. Where runs of the
    same thing are known, the interval is no narrower than they lie apart.
    """
    replays = context.model.usable if context.model else None
    if finding.symptom_of is not None or replays is None:
        return finding, None
    removed = _removed(finding, context, replays)
    if removed is None:
        return finding, None
    removed, finding = _with_hiding(removed, finding, context, replays)
    found, apart = removed.found, another_run.apart(context.repeats)
    limit = f"; the next limit are hosts that need {found.hosts_ms:.1f} ms a step" if found.hosts_ms else ""
    if found.bound:
        limit += "; what every host needs is not in the traces, and may be the next limit"
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


def _speedup(finding: Finding, removed: _Removed, interval: Interval | None) -> Speedup | None:
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


def within_noise(what: WhatIf, context: Context) -> str | None:
    """Why a finding's effect is no effect, in words; None if it has one.

    The gain of these very steps, resampled, must lie above none at all, and for waits between ranks above
    half of their threshold: somebody is always the last, and on a busy machine often the same one for a
    while. Where the same thing ran four times or more before, the gain must also be more than such runs
    differ by without the causes that were found in them: less is seen again with nothing changed. What
    is not known of those causes is no difference between runs.
    """
    return _noise(what.kind, what.speedup, what.effect_interval, context)


def _noise(kind: Kind, speedup: float, interval: Interval | None, context: Context) -> str | None:
    least = context.policy.straggler_pct / 2 if kind == "straggler" else 0.0
    if interval is not None and _share(interval.low) <= least:
        gained = f"replayed without it, {_percent(interval)} of the step would be gained"
        return f"within noise: {gained}" + (f", and {least:g} % at least would have to be" if least else "")
    spread = another_run.by_chance(context.repeats)
    if spread is None or math.log(speedup) > spread:
        return None
    gained = f"replayed without it, {_share(speedup):.0f} % of the step would be gained"
    runs = f"{len(context.repeats)} other runs of the same thing"
    return f"within noise: {gained}, and by {runs} {_share(math.exp(spread)):.0f} % vary by chance"


def _percent(interval: Interval) -> str:
    return f"{_share(interval.low):.0f} to {_share(interval.high):.0f} %"


def _share(speedup: float) -> float:
    """Of the step, in percent."""
    return 100.0 * (1.0 - 1.0 / speedup)


def _removed(finding: Finding, context: Context, replays: Replays) -> _Removed | None:
    if finding.kind == "data_loading":
        return _loading(finding.ranks, replays)
    if finding.kind == "straggler":
        return _lateness(finding.ranks, replays)
    if finding.kind == "communication":
        return _transfer(replays)
    if finding.kind == "host_bound":
        return _host(context, replays)
    return None


def _with_hiding(
    removed: _Removed, finding: Finding, context: Context, replays: Replays
) -> tuple[_Removed, Finding]:
    """What goes where other ranks are as slow by something else, which hides what the finding's own gain.

    Where it gains next to nothing by itself and more together with those, both go. Where it gains by itself,
    an action says what holds the step up next, if that is worth half as much again.
    """
    parts = _OF_RANKS.get(finding.kind)
    hiding = replays.hidden_by(parts, finding.ranks) if parts and finding.ranks else []
    if parts is None or not hiding:
        return removed, finding
    both, alone = replays.together(parts, finding.ranks, hiding), removed.found
    rest = "compute and host work" if finding.kind == "data_loading" else "loader waits"
    if _noise(finding.kind, both.speedup, both.effect_interval, context) is not None:
        return removed, finding
    more = f"{rest} of {rank_words(hiding)}"
    noise = _noise(finding.kind, alone.speedup, alone.effect_interval, context)
    if noise is not None or _share(alone.speedup) < HIDDEN * _share(both.speedup):
        said = f"take both away: by itself it gains next to nothing, because of the longer {more}"
        actions = [said, *finding.actions]
        return (
            _Removed(f"{removed.words} and the longer {more}", both),
            msgspec.structs.replace(finding, actions=actions),
        )
    if _share(both.speedup) < MORE_AGAIN * _share(alone.speedup):
        return removed, finding
    said = f"then look at the longer {more}, next in line: {both.speedup:.2f}× without both"
    return removed, msgspec.structs.replace(finding, actions=[*finding.actions, said])


def _loading(ranks: list[int], replays: Replays) -> _Removed:
    if not ranks:
        return _Removed("every wait for a loader", replays.without({"data_loading": 1.0}))
    found = replays.as_the_others(_OF_RANKS["data_loading"], ranks)
    return _Removed(f"the longer waits of {rank_words(ranks)} for the loader", found)


def _lateness(ranks: list[int], replays: Replays) -> _Removed:
    found = replays.as_the_others(_OF_RANKS["straggler"], ranks)
    if not ranks:
        return _Removed("the differences between ranks in each step's compute and host work", found)
    return _Removed(f"the longer compute and host work of {rank_words(ranks)}", found)


def _host(context: Context, replays: Replays) -> _Removed | None:
    """The GPU's idle time inside of compute's windows, where it is most of the host's part; else its gap.

    The windows shrink by the share of them that their kernels leave idle, so that a collective that they hid
    takes its time all the same: windows of 80 ms of which the GPU idles 60, with a hidden exchange of 50 ms
    posted at a quarter of them, end with it after 5 + 50 ms, and not after 20.
    """
    if context.idle_inside_ms > MOST_OF_HOST * context.host_ms and context.idle_inside_share < 1.0:
        share = context.idle_inside_share
        return _Removed(
            f"the {100 * share:.0f} % of compute's windows in which the GPU idles for the host",
            replays.without({"compute": share}),
            replays.without({"compute": share, "host": 1.0}),
        )
    if context.host_share is None:
        return None
    words = f"{100 * context.host_share:.0f} % of the host's part"
    if context.launch_bound:
        words = f"the short gaps between kernels, {words}"
    return _Removed(words, replays.without({"host": context.host_share}), replays.without({"host": 1.0}))


def _transfer(replays: Replays) -> _Removed | None:
    """The costliest collective, where it is most of what a network without cost would gain; else that."""
    ideal, costliest = replays.without_transfer(), replays.costliest_place()
    if costliest is None:
        return None
    place, found = costliest
    now = replays.modelled_ms
    if len(replays.places()) > 1 and now - found.step_ms >= (now - ideal.step_ms) / 2:
        size = f" of {place.bytes / 1e6:.1f} MB" if place.bytes else ""
        return _Removed(f"the transfer of the costliest collective, {place.op}{size}", found, ideal)
    return _Removed("every transfer (an ideal network)", ideal)
