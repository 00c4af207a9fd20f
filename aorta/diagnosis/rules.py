"""One function a finding: the context to the measured value, and the finding if it passes the threshold.

The estimated speed-up is mean step time now over the step time without the part in question. High: all of the
part is gone. Low: it is brought down to its threshold, or as far as the data bounds it, if that is less:
for the loader by the rank that it costs least, for communication by the compute that is free to hide it.
"""

from __future__ import annotations

from statistics import fmean, median, median_low
from typing import Any

import msgspec

from aorta.artefacts.analysis import Finding, Kind, Measured, Severity
from aorta.diagnosis import actions
from aorta.diagnosis.context import Answer, Context, gain, not_measured, removal_to_threshold
from aorta.diagnosis.memory import memory_pressure
from aorta.diagnosis.rank import late_by_host, rank_words, slow_loaders

STEP_SHARE = "% of step"


def data_loading(context: Context) -> Answer:
    """Share of the step that the worst rank gives to its loader, and to waits for other ranks' loaders."""
    threshold = context.policy.data_wait_pct
    reason = context.too_little()
    if not reason and not context.loader_marked:
        most = max(100.0 * item.host_ms / item.step_ms for item in context.costs)
        part = f"it is within the host's part, at most {most:.1f} % of a step"
        reason = f"not measurable: no trace marks a loader; {part}"
    if reason:
        return not_measured("data_loading", threshold, STEP_SHARE, reason), None
    value = max(100.0 * item.loading_ms / item.step_ms for item in context.costs)
    measured = _measured("data_loading", value, threshold, STEP_SHARE, fired=value > threshold)
    if not measured.fired:
        return measured, None
    ranks = slow_loaders(context.costs, context.policy.culprit_share, threshold)
    if not ranks and context.ranks_missing:
        ranks = [item.rank for item in context.costs]
    own = [item.data_wait_ms for item in context.costs]
    loading, step = fmean(item.loading_ms for item in context.costs), context.step_ms
    least = min(item.loading_ms for item in context.costs)
    low = min(removal_to_threshold(step, loading, threshold), least)
    evidence: dict[str, Any] = {
        "data_wait_ms_worst_rank": max(own),
        "data_wait_ms_median_rank": median(own),
        "others_wait_ms": fmean(item.charged("data_loading") for item in context.costs),
        "step_ms": step,
        "files": list(context.files),
    }
    if context.config is not None:
        evidence["dataloader.num_workers"] = context.config.dataloader.num_workers
        evidence["dataset.delay_ms"] = context.config.dataset.delay_ms
    others = "; the other ranks wait for it in communication" if ranks and not context.blame_absent else ""
    loaders = "loader" if len(ranks) == 1 else "loaders"
    delivers = "delivers" if len(ranks) == 1 else "deliver"
    cause = f"the {loaders} of {rank_words(ranks)} {delivers} a batch later than the step needs it{others}"
    finding = Finding(
        kind="data_loading",
        severity=_severity(value / 100.0),
        cause=cause,
        ranks=ranks,
        nodes=context.nodes(ranks),
        value=value,
        threshold=threshold,
        unit=STEP_SHARE,
        evidence=evidence,
        estimated_speedup=gain(step, low, loading),
        actions=actions.data_loading(context, ranks),
    )
    return measured, finding


def communication(context: Context) -> Answer:
    """Mean share of the step in communication that no compute hides, waits included."""
    threshold = context.policy.exposed_comm_pct
    reason = context.too_little()
    if not reason and context.world_size > 1 and not any(row.comm_ms for row in context.breakdown.per_rank):
        reason = (
            f"not measurable: {context.world_size} ranks, but the {context.records} hold no communication"
        )
    if reason:
        return not_measured("communication", threshold, STEP_SHARE, reason), None
    rows, step = context.breakdown.per_rank, context.step_ms
    exposed = fmean(item.exposed_comm_ms for item in context.costs)
    value = 100.0 * exposed / step
    measured = _measured("communication", value, threshold, STEP_SHARE, fired=value > threshold)
    if not measured.fired:
        return measured, None
    transfer = fmean(item.transfer_ms for item in context.costs)
    hidden = fmean(row.comm_ms - row.exposed_comm_ms for row in rows)
    free = max(fmean(row.compute_ms for row in rows) - hidden, 0.0)
    total = sum(row.comm_ms for row in rows)
    evidence: dict[str, Any] = {
        "exposed_comm_ms": exposed,
        "transfer_and_late_exchanges_ms": transfer if context.blame_absent is None else None,
        "waits_charged_to_ranks_ms": exposed - transfer if context.blame_absent is None else None,
        "comm_ms": total / len(rows),
        "overlap_ratio": 1.0 - sum(row.exposed_comm_ms for row in rows) / total,
        "step_ms": step,
        "files": list(context.files),
    }
    if context.blame_absent:
        evidence["waits"] = context.blame_absent
    finding = Finding(
        kind="communication",
        severity=_severity(value / 100.0),
        cause=_communication_cause(context, exposed, transfer),
        ranks=[],
        nodes=[],
        value=value,
        threshold=threshold,
        unit=STEP_SHARE,
        evidence=evidence,
        estimated_speedup=gain(step, min(removal_to_threshold(step, exposed, threshold), free), exposed),
        actions=actions.communication(context),
    )
    return measured, finding


def _communication_cause(context: Context, exposed_ms: float, transfer_ms: float) -> str:
    if context.blame_absent:
        return f"ranks exchange data or wait while nothing is computed: {context.blame_absent}"
    if transfer_ms >= exposed_ms / 2:
        return "ranks exchange data while nothing is computed"
    return "ranks wait in collectives for the last one to arrive more than they exchange data"


def straggler(context: Context) -> Answer:
    """Share of the step that the worst-off rank loses to other ranks' compute or host work.

    What of its waits its own host takes anyway is no loss to another rank: it is the hosts' part.
    """
    threshold = context.policy.straggler_pct
    reason = context.too_little()
    if not reason and context.world_size == 1:
        reason = "not measurable: one rank waits for nobody"
    if not reason and context.blame_absent:
        reason = f"not measurable: {context.blame_absent}"
    if reason:
        return not_measured("straggler", threshold, STEP_SHARE, reason), None
    value = max(100.0 * item.lateness_ms / item.step_ms for item in context.costs)
    measured = _measured("straggler", value, threshold, STEP_SHARE, fired=value > threshold)
    if not measured.fired:
        return _beside_own_hosts(measured, context), None
    ranks = context.last_ranks
    waiting = [item for item in context.costs if item.rank not in ranks]
    lost = [item.lateness_ms for item in waiting]
    compute = fmean(item.charged("compute") for item in waiting)
    host = fmean(item.charged("host") for item in waiting)
    hosts = late_by_host(context.costs, ranks)
    others = [rank for rank in ranks if rank not in hosts]
    compute_late, host_late = (bool(others), bool(hosts)) if ranks else (compute >= host, host > compute)
    if compute_late != host_late:
        who = _who_is_late(ranks, host=host_late)
    else:
        who = f"{_who_is_late(others, host=False)}, and for {_who_is_late(hosts, host=True)}"
    finding = Finding(
        kind="straggler",
        severity=_severity(value / 100.0),
        cause=f"the other ranks wait for {who}",
        ranks=ranks,
        nodes=context.nodes(ranks),
        value=value,
        threshold=threshold,
        unit=STEP_SHARE,
        evidence={
            "waits_for_compute_ms": compute,
            "waits_for_host_ms": host,
            **({"ranks_late_by_host": hosts} if compute_late and host_late else {}),
            **_own_hosts(context),
            "step_ms": context.step_ms,
            "files": list(context.files),
        },
        estimated_speedup=gain(context.step_ms, min(lost), fmean(lost)),
        actions=actions.straggler(context, ranks, compute=compute_late, host=host_late),
    )
    return measured, finding


def _beside_own_hosts(measured: Measured, context: Context) -> Measured:
    """A value that is no finding, with what was left out of it where that alone would be one."""
    whole = max(100.0 * item.charged("compute", "host") / item.step_ms for item in context.costs)
    if whole <= measured.threshold:
        return measured
    own = "and all but this would go to the waiting ranks' own hosts"
    reason = f"ok: waits for other ranks take {whole:.1f} %, {own}"
    return msgspec.structs.replace(measured, reason=reason)


def _own_hosts(context: Context) -> dict[str, float]:
    """What of ranks' waits for others their own hosts take anyway, where that is known and any."""
    own = fmean(item.own_host_wait_ms for item in context.costs)
    return {"waits_that_own_hosts_take_anyway_ms": own} if own else {}


def _who_is_late(ranks: list[int], *, host: bool) -> str:
    who, several = rank_words(ranks) if ranks else "whichever rank is last", len(ranks) > 1
    if host:
        return f"{who}, which {'spend' if several else 'spends'} more time on the host"
    return f"{who}, which {'compute' if several else 'computes'} longer"


def host_bound(context: Context) -> Answer:
    """Share of the step in which the device idles for a host, neither loading nor exchanging data.

    By step records it is what lies outside of all that was timed, and the GPU's idle time inside of
    compute's windows, where steps recorded kernel by kernel or the driver's counter show it. By traces it
    takes in what of its waits for other ranks a rank's own host takes anyway: of hosts that are all slow the
    slowest one alone lets its GPU idle, and the other GPUs wait in collectives meanwhile. Where no rank
    stands out it takes in all waits for hosts: they make each other wait by turns. Of the ranks' shares the
    lower median: the host of a single slow rank makes it a straggler, not this. Ranks that left nothing might
    all be fast: it has to hold with them, too.
    """
    threshold = context.policy.host_pct
    reason = context.too_little()
    if reason:
        return not_measured("host_bound", threshold, STEP_SHARE, reason), None
    inside, waits = context.idle_inside_ms, _waits_of_all_hosts(context)
    parts = [item.host_ms + inside + waited for item, waited in zip(context.costs, waits, strict=True)]
    shares = [100.0 * ms / item.step_ms for item, ms in zip(context.costs, parts, strict=True)]
    value = median_low(shares)
    unseen = max(context.world_size - len(shares), 1) if context.ranks_missing else 0
    if value > threshold >= median_low([*shares, *[0.0] * unseen]):
        reason = (
            f"of ranks that left {context.records}; too many others are not known for this to be all hosts"
        )
        answer = _measured("host_bound", value, threshold, STEP_SHARE, fired=False)
        return msgspec.structs.replace(answer, reason=reason), None
    measured = _measured("host_bound", value, threshold, STEP_SHARE, fired=value > threshold)
    if not measured.fired:
        return measured, None
    host, step = fmean(parts), context.step_ms
    finding = Finding(
        kind="host_bound",
        severity=_severity(value / 100.0),
        cause=_host_cause(context),
        ranks=[],
        nodes=[],
        value=value,
        threshold=threshold,
        unit=STEP_SHARE,
        evidence=_host_evidence(context, waits),
        estimated_speedup=gain(step, removal_to_threshold(step, host, threshold), host),
        actions=actions.host_bound(context),
    )
    return measured, finding


def _host_evidence(context: Context, waits: list[float]) -> dict[str, Any]:
    evidence: dict[str, Any] = {"host_ms": context.host_ms, "step_ms": context.step_ms}
    if _by_turns(context) and any(waits):
        evidence["waits_for_hosts_by_turns_ms"] = fmean(waits)
    evidence |= _own_hosts(context)
    launches, inside, idle = context.launches, context.idle_inside_ms, context.idle
    if launches is not None:
        evidence |= {"kernels_per_step": launches.kernels, "idle_in_compute_windows_ms": inside}
    elif inside:
        evidence |= {
            "driver_utilization_pct": context.driver_busy_pct,
            "idle_in_compute_windows_ms": inside,
        }
    if idle is not None:
        evidence |= {
            "idle_in_short_gaps_ms": idle.short_gaps_ms,
            "idle_in_long_gaps_ms": idle.long_gaps_ms,
            "idle_while_host_synchronises_ms": idle.sync_ms,
            "launches_per_step": idle.launches,
            "launches_on_an_empty_queue_share": idle.empty_share,
        }
    return {**evidence, "files": list(context.files)}


def _waits_of_all_hosts(context: Context) -> list[float]:
    """What of each rank's waits for others is all hosts' doing, ms a step."""
    by_turns = _by_turns(context)
    return [max(item.charged("host") if by_turns else 0.0, item.own_host_wait_ms) for item in context.costs]


def _by_turns(context: Context) -> bool:
    """Whether traces show no rank that stands out."""
    return context.idle is not None and not context.last_ranks


def _host_cause(context: Context) -> str:
    unmarked = "" if context.loader_marked else "; a loader, which no trace marks, would be part of this"
    if context.launch_bound:
        text = "launch-bound: kernels are so short that the GPU waits for the next launch most of the time"
        return text + _behind_waits(context)
    idle = context.idle
    if idle is None and not context.cuda:
        return "the training process is busy with something else than forward, backward and optimizer"
    if idle is not None and idle.synchronised:
        return "the GPU has run dry while the host waits in synchronising calls" + _behind_waits(context)
    text = f"the GPU waits for its host between kernels: Python, synchronisation, CPU preprocessing{unmarked}"
    return text + _behind_waits(context)


def _behind_waits(context: Context) -> str:
    """That all hosts are slow where most of it shows on the GPUs as waits for the last one."""
    own = fmean(item.own_host_wait_ms for item in context.costs)
    if own <= fmean(item.host_ms for item in context.costs):
        return ""
    last = context.last_ranks
    who = rank_words(last) if last else "whichever rank is last"
    later = max(item.lateness_ms for item in context.costs)
    return (
        f"; so on all ranks: behind waits in collectives the other hosts need as long, and {who} at most "
        f"{later:.1f} ms a step longer"
    )


def gpu_underutilization(context: Context) -> Answer:
    """Share of the step in which a compute kernel ran. By records these are windows with gaps in them, so the
    driver's counter counts where it says less: it is never below the true share.
    """
    threshold, unit = context.policy.effective_gpu_utilization_pct, "% of time"
    use = context.utilization
    driver = use.gpu_util_pct if use else None
    effective = use.effective_gpu_util_pct if use else None
    reason = None
    if not context.cuda:
        reason = "not measurable: no GPU"
    elif context.breakdown.steps < context.policy.min_steady_steps:
        reason = context.too_little()
    elif effective is None and driver is None:
        reason = f"not measurable: no breakdown in the {context.records}, and the driver gives no utilisation"
    counter = context.driver_busy_pct
    value = effective if effective is not None else driver
    if value is not None and counter is not None and counter < value:
        value = counter
    if reason or value is None:
        return not_measured("gpu_underutilization", threshold, unit, reason or "not measurable"), None
    bound = None
    if effective is None or value == counter:
        bound = "an upper bound: the driver's counter"
    elif counter is None and context.windows_alone:
        bound = "an upper bound: the windows of compute hold the gaps between its kernels"
    measured = Measured(
        kind="gpu_underutilization",
        value=value,
        threshold=threshold,
        unit=unit,
        fired=value < threshold,
        reason=bound,
    )
    if not measured.fired:
        return measured, None
    step = context.step_ms if context.costs else 100.0
    idle = step * (1.0 - value / 100.0)
    to_threshold = step * (1.0 - value / threshold)
    finding = Finding(
        kind="gpu_underutilization",
        severity="critical" if value < threshold / 2 else "warning",
        cause=_idle_cause(context),
        ranks=[],
        nodes=[],
        value=value,
        threshold=threshold,
        unit=unit,
        evidence={
            "effective_gpu_utilization_pct": effective,
            "driver_utilization_pct": driver,
            "step_ms": context.step_ms if context.costs else None,
            "files": [*context.files, *context.sample_files],
        },
        estimated_speedup=gain(step, to_threshold, idle),
        actions=actions.gpu_underutilization(context),
    )
    return measured, finding


def _idle_cause(context: Context) -> str:
    """The largest part of the step in which no compute kernel runs; waits go to what makes them."""
    if not context.costs:
        return "no kernel runs for much of the time"
    parts = {
        "the host prepares work or waits": fmean(
            item.host_ms + item.own_host_wait_ms for item in context.costs
        ),
        "data is loaded": fmean(item.loading_ms for item in context.costs),
        "data is exchanged between ranks": fmean(item.transfer_ms for item in context.costs),
        "ranks wait for slower ones": fmean(item.lateness_ms for item in context.costs),
        "data is copied": fmean(item.copy_ms for item in context.costs),
    }
    largest = max(parts, key=lambda name: parts[name])
    return f"no compute kernel runs for much of the step; most of that time {largest}"


def _measured(kind: Kind, value: float, threshold: float, unit: str, *, fired: bool) -> Measured:
    return Measured(kind=kind, value=value, threshold=threshold, unit=unit, fired=fired)


def _severity(share: float) -> Severity:
    """Critical where the part takes half of the step or more."""
    return "critical" if share >= 0.5 else "warning"


RULES = (data_loading, communication, straggler, host_bound, gpu_underutilization, memory_pressure)
"""In the order in which they are reported."""
