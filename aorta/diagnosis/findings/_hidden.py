"""Ranks whose kernels take longer in every step, where the other ranks' own hosts hide most of that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aorta.artefacts.analysis import Finding, RuleMeasurement
from aorta.averages import fmean, median_low
from aorta.diagnosis.finding import STEP_SHARE, RuleResult, found, gain, measured
from aorta.diagnosis.host_time import waits_of_own_hosts
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.rank import RankCosts, late_by_host
from aorta.units import rank_list, rank_words

IN_EVERY_STEP = 0.9
"""A rank is late in every step if it is late in this share of the steps."""
_LONGER = "computes_longer_ms"
_REMEDY = "record a trace with all driver calls, which shows when hosts wait for their GPUs"


def answer(lateness: RuleMeasurement, seen: Observation) -> RuleResult:
    """Returns the ranks whose kernels take longer, or the answer `lateness` with what it leaves out.

    Lateness leaves out the part of each wait that the waiting rank's own host needs anyway. Where all hosts
    are equally slow, that leaves nothing, and rightly so: the last rank is only the one whose GPU shows it.
    Kernels that take longer on one rank are a fault of their own. Its ranks are named, with a gain that the
    hosts limit.

    Args:
        lateness: the measured lateness, below its threshold.
        seen: what was observed.
    """
    ranks = _slower(seen)
    waiting = [item for item in seen.steps.costs if item.rank not in ranks]
    behind = {item.rank: _behind_kernels(item, ranks, seen) for item in waiting}
    value = max((100.0 * behind[item.rank] / item.step_ms for item in waiting), default=0.0)
    if not ranks or value <= lateness.threshold:
        return RuleResult(_with_left_out(lateness, seen))
    longer, step_ms = min(_longer_ms(rank, seen) for rank in ranks), seen.steps.step_ms
    do = "computes" if len(ranks) == 1 else "compute"
    most = fmean(min(behind[item.rank], item.lateness_ms + _host_doubt_ms(item, seen)) for item in waiting)
    return found(
        measured(lateness.kind, value, lateness.threshold, STEP_SHARE, fired=True),
        f"the other ranks wait for {rank_words(ranks)}, which {do} for {longer:.1f} ms longer in every "
        "step; their own host work takes most of that time, too",
        {
            "waits_for_compute_ms": fmean(item.charged("compute") for item in waiting),
            "waits_for_host_ms": fmean(item.charged("host") for item in waiting),
            _LONGER: longer,
            **waits_of_own_hosts(seen),
            "step_ms": step_ms,
            "files": list(seen.steps.files),
        },
        gain(step_ms, min(item.lateness_ms for item in waiting), most),
        ranks=ranks,
        nodes=seen.job.nodes(ranks),
    )


def speaks(finding: Finding) -> bool:
    """Returns True if a finding is one that `answer` made."""
    return _LONGER in finding.evidence


def statement(finding: Finding, seen: Observation) -> str:
    """Returns the sentence of the verdict."""
    waiting = [item.rank for item in seen.steps.costs if item.rank not in finding.ranks]
    who = rank_list(waiting) if len(waiting) == 1 else "the other ranks"
    one, longer = len(finding.ranks) == 1, finding.evidence[_LONGER]
    speedup = finding.estimated_speedup
    most = f" Without it, the step would be at most {speedup.high:.2f} times as fast." if speedup else ""
    return (
        f"{rank_list(finding.ranks).capitalize()} {'computes' if one else 'compute'} for {longer:.1f} ms "
        f"longer in every step, and {who} {'waits' if len(waiting) == 1 else 'wait'}. Host work on the "
        f"waiting ranks takes nearly as long, and hides most of this delay.{most}"
    )


def actions(seen: Observation) -> list[str]:
    """Returns what comes after the advice for the late ranks."""
    own = fmean(item.own_host_wait_ms for item in seen.steps.costs)
    return [
        f"then shorten host work, which hides {own:.1f} ms per step of this delay: CUDA graphs, fewer "
        "launches"
    ]


def _slower(seen: Observation) -> list[int]:
    """Returns the ranks that the others wait for in every step because of their kernels. Empty if there are
    none.

    Windows of compute hold gaps that the host leaves, so that only kernels of traces tell.
    """
    ranks, late = seen.last_ranks(), seen.model.lateness if seen.model else None
    if not ranks or late is None or not seen.steps.traced or late_by_host(seen.steps.costs, ranks):
        return []
    always = {row.rank for row in late.ranks if row.share_of_steps >= IN_EVERY_STEP}
    return ranks if set(ranks) <= always and min(_longer_ms(rank, seen) for rank in ranks) > 0 else []


def _longer_ms(rank: int, seen: Observation) -> float:
    """Returns the compute time of `rank` above that of the typical rank, in ms."""
    own = {item.rank: item.compute_ms for item in seen.steps.costs}
    return own[rank] - median_low(own.values())


def _behind_kernels(item: RankCosts, ranks: Sequence[int], seen: Observation) -> float:
    """Returns the part of a rank's waits that longer kernels of `ranks` account for, ms."""
    own = {one.rank: one.compute_ms for one in seen.steps.costs}
    charged = {rank: item.charged_ms.get((rank, "compute"), 0.0) for rank in ranks}
    return sum(min(ms, max(own[rank] - item.compute_ms, 0.0)) for rank, ms in charged.items())


def _host_doubt_ms(item: RankCosts, seen: Observation) -> float:
    """Returns how much less a rank's host may need than was estimated; all of it if nothing bounds that."""
    weight, needs = seen.facts.profiler_weight, item.host_work_ms or 0.0
    if weight is None or weight.step_ms_without.value <= 0:
        return needs
    return needs * max(1.0 - weight.step_ms_without.low / weight.step_ms_without.value, 0.0)


def _with_left_out(lateness: RuleMeasurement, seen: Observation) -> RuleMeasurement:
    """Returns a value that is no finding, with what was left out of it where that alone would be one."""
    whole = max(100.0 * item.charged("compute", "host") / item.step_ms for item in seen.steps.costs)
    if whole <= lateness.threshold:
        return lateness
    said = (
        f"ok: ranks wait for each other {whole:.1f} % of the step, but all except {lateness.value:.2f} % "
        "would remain without the last rank: the waiting ranks' own host work takes as long"
    )
    return msgspec.structs.replace(lateness, reason=said, remedy=_REMEDY)
