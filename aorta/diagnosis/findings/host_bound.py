"""Host bound: the device waits for work from the host.

What it finds:
    The share of the step in which the device waits for host work: kernel launches, Python, or synchronising
    calls. Data loading and communication are excluded. The value is that of the median rank, because slow
    host work on a single rank is a straggler.
Why it costs time:
    A GPU runs only what the host has launched. It runs out of work if kernels are shorter than a launch, or
    if the host works or waits between launches.
What to do:
    Launch fewer and larger kernels (CUDA graphs, fused operators, larger batches), remove calls that wait for
    the GPU, and move CPU work out of the step.
"""

from __future__ import annotations

from typing import Any

from aorta.artefacts.analysis import Finding
from aorta.averages import fmean, median_low
from aorta.diagnosis.finding import (
    MOST,
    STEP_SHARE,
    FindingSpec,
    Found,
    PredictedRemoval,
    RuleResult,
    SubCause,
    found,
    gain,
    measured,
    not_measured,
    removal_to_threshold,
    unknown,
    value_words,
)
from aorta.diagnosis.host_time import (
    LESS_GARBAGE,
    MOST_OF_HOST,
    driver_busy_pct,
    host_ms,
    host_share,
    idle_inside_ms,
    idle_inside_share,
    launch_bound,
    launches,
    waits_of_own_hosts,
)
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.metrics.trace_capture import HostIdle
from aorta.metrics.whatif import Replays
from aorta.units import plural, rank_words

KIND = "host_bound"


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    """Returns the hosts' part of the step, as far as the source shows it.

    Step records: the time outside of everything that was timed. The GPU's idle time inside compute windows is
    added where steps recorded kernel by kernel, or the driver's counter, show it.

    Traces: the part of a rank's waits for other ranks that its own host needs anyway is added. Where all
    hosts are slow, only the slowest one lets its GPU idle, and the other GPUs wait in collectives meanwhile.
    Where no rank stands out, all waits for hosts are added: different ranks are late in different steps.

    Ranks that left nothing might all be fast: the finding has to hold with them, too.
    """
    threshold, steps = policy.host_pct, seen.steps
    reason = steps.too_little(policy)
    if reason:
        return not_measured(KIND, threshold, STEP_SHARE, reason)
    inside, waits = idle_inside_ms(seen), _waits_of_all_hosts(seen)
    parts = [item.host_ms + inside + waited for item, waited in zip(steps.costs, waits, strict=True)]
    shares = [100.0 * ms / item.step_ms for item, ms in zip(steps.costs, parts, strict=True)]
    value = median_low(shares)
    unseen = max(seen.job.world_size - len(shares), 1) if seen.job.ranks_missing else 0
    if value > threshold >= median_low([*shares, *[0.0] * unseen]):
        reason = f"only on ranks that left {steps.source}; too little is known about the other ranks"
        return RuleResult(measured(KIND, value, threshold, STEP_SHARE, fired=False, reason=reason))
    answer = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not answer.fired:
        return RuleResult(answer)
    host, step = fmean(parts), steps.step_ms
    return found(
        answer,
        _cause(seen),
        _evidence(seen, waits),
        gain(step, removal_to_threshold(step, host, threshold), host),
    )


def _evidence(seen: Observation, waits: list[float]) -> dict[str, Any]:
    evidence: dict[str, Any] = {"host_ms": host_ms(seen), "step_ms": seen.steps.step_ms}
    if _by_turns(seen) and any(waits):
        evidence["waits_for_hosts_by_turns_ms"] = fmean(waits)
    evidence |= waits_of_own_hosts(seen)
    recorded, inside, idle = launches(seen), idle_inside_ms(seen), seen.host.idle
    if recorded is not None:
        evidence |= {"kernels_per_step": recorded.kernels, "idle_in_compute_windows_ms": inside}
    elif inside:
        evidence |= {"driver_utilization_pct": driver_busy_pct(seen), "idle_in_compute_windows_ms": inside}
    if idle is not None:
        evidence |= {
            "idle_in_short_gaps_ms": idle.short_gaps_ms,
            "idle_in_long_gaps_ms": idle.long_gaps_ms,
            "idle_while_host_synchronises_ms": idle.sync_ms,
            "launches_per_step": idle.launches,
            "launches_on_an_empty_queue_share": idle.empty_share,
        }
    return {**evidence, "files": list(seen.steps.files)}


_HOST_CALLS = "torch.profiler with CPU activity, nsys -t cuda,nvtx, or rocprofv3 --hip-runtime-trace"


def _waits_of_all_hosts(seen: Observation) -> list[float]:
    """Returns what of each rank's waits for others is all hosts' doing, ms per step."""
    by_turns, costs = _by_turns(seen), seen.steps.costs
    return [max(item.charged("host") if by_turns else 0.0, item.own_host_wait_ms) for item in costs]


def _by_turns(seen: Observation) -> bool:
    """Returns True if traces show no rank that stands out."""
    return seen.host.idle is not None and not seen.last_ranks()


def _cause(seen: Observation) -> str:
    idle, behind = seen.host.idle, _behind_waits(seen)
    absent = seen.steps.loader_absent is not None
    unmarked = "; a loader, which no trace marks, would be part of this" if absent else ""
    if idle is not None and not idle.launches:
        return f"the GPU idles, and no recorded call of the host shows why{unmarked}{behind}"
    if launch_bound(seen):
        text = "launch-bound: kernels are so short that the GPU mostly waits for the next launch"
        return text + behind
    if idle is None and not seen.job.cuda:
        return "the training process is busy with something other than forward, backward and optimizer"
    if idle is not None and idle.synchronised:
        return "the GPU has no work while the host waits in synchronising calls" + behind
    text = (
        f"between kernels, the GPU waits for host work: Python, synchronisation, CPU preprocessing{unmarked}"
    )
    return text + behind


def _behind_waits(seen: Observation) -> str:
    """Returns that all hosts are slow where most of it shows on the GPUs as waits for the last one."""
    costs = seen.steps.costs
    own = fmean(item.own_host_wait_ms for item in costs)
    if own <= fmean(item.host_ms for item in costs):
        return ""
    last = seen.last_ranks()
    who = rank_words(last) if last else "whichever rank is last"
    later = max(item.lateness_ms for item in costs)
    return (
        "; host work is about equally slow on all ranks: on the other ranks it is hidden inside collective "
        f"waits, and on {who} it takes at most {later:.1f} ms longer per step"
    )


def _taking_turns(found: Found) -> bool:
    """Returns True if slow hosts take turns: waiting for them is no single rank's doing."""
    late = found.get("straggler")
    return late is None or not late.ranks


def _waits(found: Found, seen: Observation, _: float) -> float:
    own = sum(item.own_host_wait_ms for item in seen.steps.costs)
    host = sum(item.charged("host") for item in seen.steps.costs)
    return max(host, own) if _taking_turns(found) else own


def _claims(_: FindingSpec, finding: Finding, found: Found, seen: Observation, __: Policy) -> bool:
    """Returns True if ranks that are late in turn are late because of their hosts more than of compute."""
    compute, host = (sum(item.charged(cause) for item in seen.steps.costs) for cause in ("compute", "host"))
    return finding.kind == "straggler" and _taking_turns(found) and host >= compute


def _removes(_: Finding, seen: Observation, replays: Replays) -> PredictedRemoval | None:
    """Returns the GPU's idle time inside of compute's windows, where it is most of the host's part; else its
    gap.

    The windows shrink by their idle share, and a collective that they hid still takes its full time. For
    example, take windows of 80 ms in which the GPU is idle for 60 ms, with a hidden exchange of 50 ms that
    is posted after a quarter of them. They end with the exchange after 5 + 50 ms, and not after 20 ms.
    """
    share = idle_inside_share(seen)
    if idle_inside_ms(seen) > MOST_OF_HOST * host_ms(seen) and share < 1.0:
        return PredictedRemoval(
            f"the {100 * share:.0f} % of compute's windows in which the GPU waits for host work",
            replays.without({"compute": share}),
            replays.without({"compute": share, "host": 1.0}),
        )
    removable = host_share(seen)
    if removable is None:
        return None
    words = f"{100 * removable:.0f} % of host work"
    if launch_bound(seen):
        words = f"the short gaps between kernels, {words}"
    return PredictedRemoval(words, replays.without({"host": removable}), replays.without({"host": 1.0}))


def _sub_cause(_: Finding, seen: Observation, __: Policy) -> SubCause:
    recorded, gap, busy = launches(seen), seen.host.gap, driver_busy_pct(seen)
    paused = _collector_ms(seen)
    if paused > MOST * host_ms(seen):
        text = f"Python's garbage collector pauses the ranks for {paused:.1f} ms per step on average"
        return SubCause("gc_pauses", text, {"collector_ms": paused})
    if recorded is not None and launch_bound(seen):
        each = 1000 * recorded.kernels_ms / recorded.kernels
        kernels = plural(round(recorded.kernels), "kernel")
        text = f"{kernels} per step of {each:.0f} us each: the GPU waits for launches"
        return SubCause(
            "launch_bound", text, {"kernels": recorded.kernels, "kernels_ms": recorded.kernels_ms}
        )
    if seen.host.idle is not None:
        return _traced(seen.host.idle, launches_late=launch_bound(seen))
    if busy is not None and idle_inside_ms(seen) > MOST * host_ms(seen):
        return unknown(
            f"according to the driver's counter, kernels ran {busy:.0f} % of the time, less than the windows "
            "of compute: launches come late. A trace or capture.kernel_interval shows if kernels are too "
            "short, or if Python or synchronisation takes time between them"
        )
    if gap is not None and gap.share >= MOST:
        share = f"{100 * gap.share:.0f} % of host work"
        text = f"{gap.ms:.1f} ms per step are spent between {gap.after} and {gap.before}: {share}"
        return SubCause("host_work", text, {"largest_gap_ms": gap.ms, "largest_gap_share": gap.share})
    return unknown("host work is spread over many places outside of the timed parts")


def _collector_ms(seen: Observation) -> float:
    """Returns the mean pause of the collector per step and rank; 0 where none was noted. On a CPU, a pause
    within the forward or backward pass is part of compute and not of the host's part.
    """
    known = seen.host.collector.items()
    pauses = {rank: item.ms if seen.job.cuda else item.outside_ms for rank, item in known}
    return fmean(pauses.get(item.rank, 0.0) for item in seen.steps.costs)


def _traced(idle: HostIdle, *, launches_late: bool) -> SubCause:
    gaps = idle.gaps_ms
    if not idle.launches:
        short = (
            f"{idle.short_gaps_ms:.1f} of {gaps:.1f} ms of visible idle time are short gaps between kernels"
        )
        return unknown(f"{short}; to see why, record the host's calls: {_HOST_CALLS}")
    if launches_late:
        text = f"{plural(round(idle.launches), 'kernel launch', 'kernel launches')} per step"
        if idle.empty_share is not None:
            text += f"; when a GPU was idle, its queue was empty {100 * idle.empty_share:.0f} % of the time"
        short = (
            f"of {gaps:.1f} ms of visible idle time, {idle.short_gaps_ms:.1f} ms are short gaps between "
            f"kernels"
        )
        return SubCause("launch_bound", f"{text}; {short}")
    if idle.synchronised:
        return SubCause(
            "synchronisation",
            f"the host waits for the GPU during {idle.sync_ms:.1f} of {gaps:.1f} ms of idle time",
        )
    return SubCause(
        "host_work",
        f"{idle.long_gaps_ms:.1f} of {gaps:.1f} ms of idle time are in long gaps: Python, CPU work",
    )


def _actions(_: Finding, seen: Observation) -> list[str]:
    config, actions = seen.job.config, []
    if _collector_ms(seen) > MOST * host_ms(seen):
        return [LESS_GARBAGE]
    if launch_bound(seen):
        if config is not None:
            compiled = "reduce-overhead"
            if not config.compile.enabled or config.compile.mode != compiled:
                actions.append(
                    f"set compile.enabled to true (now {str(config.compile.enabled).lower()}), compile.mode "
                    f"to {compiled} (now {config.compile.mode}): CUDA graphs launch many kernels at once"
                )
            actions.append(
                f"raise training.batch_size (now {config.training.batch_size}): more work per kernel launch"
            )
        return [*actions, "launch fewer, larger kernels: fused or foreach optimizers, fused operations"]
    if config is not None:
        actions.append(
            f"look at the loss less often: training.log_interval (now {config.training.log_interval})"
        )
        actions.append(
            "match the number of threads to the rank's CPUs: training.cpu_threads (now "
            f"{config.training.cpu_threads})"
        )
    return [
        *actions,
        "remove what makes the host wait for the GPU in the step: .item(), .cpu(), printing losses, "
        "synchronising timers",
        "move CPU work out of the step: preprocessing to loader workers, logging to every n-th step",
        "check that the process has its own CPU cores, and how many threads compete for them",
    ]


def _statement(finding: Finding, seen: Observation) -> str:
    value = value_words(finding)
    cause = finding.cause.partition("; ")[0]  # the rest is with the finding
    does = "keeps the GPU idle for" if seen.job.cuda else "takes"
    where = " on the median rank" if len(seen.steps.costs) > 1 else ""
    return f"Host work {does} {value} % of each step{where}. {cause[:1].upper()}{cause[1:]}."


SPEC = FindingSpec(
    kind=KIND,
    parts=lambda _finding, _seen: ("other",),
    name="host bound",
    subject="host work",
    value="time that the device waits for host work, not for data or communication",
    value_of="the step (median over ranks)",
    measured_from=(
        "step records, and kernel traces if available. In a job without GPUs, the time of the host work "
        "itself is used"
    ),
    order=40,
    thresholds=("host_pct",),
    fires_below=False,
    measure=_measure,
    cost=host_ms,
    waits_for=("compute", "host"),
    of_host_time=True,
    of_kernel_kinds=False,
    waits=_waits,
    symptom_of=None,
    claims=_claims,
    yields=False,
    may_wait_for_missing=False,
    sub_causes={
        "gc_pauses": "Python's garbage collector pauses the ranks.",
        "launch_bound": "Kernels are so short that launching them takes longer than running them.",
        "synchronisation": "The host waits for the GPU and launches nothing in the meantime.",
        "host_work": "Between launches, the host runs Python or other CPU work.",
    },
    sub_cause=_sub_cause,
    compares_ranks=(),
    removes=_removes,
    least_gain_pct=None,
    unsupported=None,
    lowers={"serialisation": 3, "communication": 4},
    actions=_actions,
    statement=_statement,
    needed=lambda _, __: True,
    alike=("data_loading", "no source marks the data loader, so its time would be part of host work"),
)
