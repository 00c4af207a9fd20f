"""What each finding's removal would gain, by replay."""

from __future__ import annotations

import msgspec

from aorta.artefacts.analysis import Finding, Interval, Speedup, WhatIf
from aorta.diagnosis.context import MOST_OF_HOST, Context
from aorta.diagnosis.rank import rank_words
from aorta.metrics.whatif import Prediction, Replays

Removed = tuple[str, Prediction, Prediction]
"""What goes, in words, what that gives, and what is the most."""


def predicted(finding: Finding, context: Context) -> tuple[Finding, WhatIf | None]:
    """The finding with its speed-up by replay; as it is where nothing can be predicted for it.

    A replay takes compute's windows as they are, so that the GPU's idle time inside of them, which only its
    kernels show, is taken off the mean step instead: an expectation beside bounds.
    """
    if finding.kind == "host_bound" and context.idle_inside_ms > MOST_OF_HOST * context.host_ms:
        return _without_idle_inside(finding, context), None
    replays = context.model.usable if context.model else None
    if finding.symptom_of is not None or replays is None:
        return finding, None
    found = _removed(finding, context, replays)
    if found is None:
        return finding, None
    removed, prediction, most = found
    highest = max(most.speedup_interval.high, prediction.speedup_interval.high, prediction.speedup)
    lowest = min(prediction.speedup_interval.low, prediction.speedup)
    speedup = Speedup(
        low=lowest, high=highest, expected=prediction.speedup, step_ms=prediction.step_ms, basis="replay"
    )
    what = WhatIf(
        kind=finding.kind,
        removed=removed,
        ranks=finding.ranks,
        step_ms=prediction.step_ms,
        step_ms_interval=prediction.step_ms_interval,
        speedup=prediction.speedup,
        speedup_interval=prediction.speedup_interval,
    )
    return msgspec.structs.replace(finding, estimated_speedup=speedup), what


def _without_idle_inside(finding: Finding, context: Context) -> Finding:
    bounds, inside, step = finding.estimated_speedup, context.idle_inside_ms, context.step_ms
    if bounds is None or inside >= step:
        return finding
    left = step - inside
    expected = step / left
    low, high = min(bounds.low, expected), max(bounds.high, expected)
    speedup = Speedup(low=low, high=high, expected=expected, step_ms=left, basis="bounds")
    return msgspec.structs.replace(finding, estimated_speedup=speedup)


def within_noise(what: WhatIf, context: Context) -> str | None:
    """Why a finding's effect is no effect, in words; None if it has one.

    The interval of the gain must lie above none at all, and for waits between ranks above half of their
    threshold: somebody is always the last, and on a busy machine often the same one for a while.
    """
    interval = what.speedup_interval
    if not interval.confidence:
        return None
    least = context.policy.straggler_pct / 2 if what.kind == "straggler" else 0.0
    if _share(interval.low) > least:
        return None
    gained = f"replayed without it, {_percent(interval)} of the step would be gained"
    return f"within noise: {gained}" + (f", and {least:g} % at least would have to be" if least else "")


def _percent(interval: Interval) -> str:
    return f"{_share(interval.low):.0f} to {_share(interval.high):.0f} %"


def _share(speedup: float) -> float:
    """Of the step, in percent."""
    return 100.0 * (1.0 - 1.0 / speedup)


def _removed(finding: Finding, context: Context, replays: Replays) -> Removed | None:
    if finding.kind == "data_loading":
        return _loading(finding.ranks, replays)
    if finding.kind == "straggler":
        return _lateness(finding.ranks, replays)
    if finding.kind == "communication":
        return _transfer(replays)
    if finding.kind == "host_bound" and context.host_share:
        found = replays.without({"host": context.host_share})
        return f"{100 * context.host_share:.0f} % of the host's part", found, replays.without({"host": 1.0})
    return None


def _loading(ranks: list[int], replays: Replays) -> Removed:
    if not ranks:
        found = replays.without({"data_loading": 1.0})
        return "every wait for a loader", found, found
    found = replays.as_the_others(("data_loading",), ranks)
    return f"what {rank_words(ranks)} wait longer for the loader than the others", found, found


def _lateness(ranks: list[int], replays: Replays) -> Removed:
    found = replays.as_the_others(("compute", "host"), ranks)
    if not ranks:
        return "the differences between ranks in each step's compute and host work", found, found
    return f"what {rank_words(ranks)} compute and do on the host more than the others", found, found


def _transfer(replays: Replays) -> Removed | None:
    """The costliest collective, where it is most of what a network without cost would gain; else that."""
    ideal, costliest = replays.without_transfer(), replays.costliest_place()
    if costliest is None:
        return None
    place, found = costliest
    now = replays.modelled_ms
    if len(replays.places()) > 1 and now - found.step_ms >= (now - ideal.step_ms) / 2:
        size = f" of {place.bytes / 1e6:.1f} MB" if place.bytes else ""
        return f"the transfer of the costliest collective, {place.op}{size}", found, ideal
    return "every transfer (an ideal network)", ideal, ideal
