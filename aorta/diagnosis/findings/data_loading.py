"""Data loading: the step waits for its batch.

What it finds:
    The share of the step that the worst rank spends waiting for its own loader or for a rank with a slow
    loader. Ranks with a slow loader are named.
Why it costs time:
    The GPU idles until the batch arrives. In data-parallel training, one slow loader delays every rank,
    because the other ranks wait in the next collective.
What to do:
    Use more loader workers, faster storage or fewer and larger files, and prepare samples before training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aorta.artefacts.analysis import Finding
from aorta.averages import fmean, median_low
from aorta.diagnosis.finding import (
    MOST,
    STEP_SHARE,
    FindingSpec,
    PredictedRemoval,
    RuleResult,
    SubCause,
    cost_sentence,
    found,
    gain,
    measured,
    not_measured,
    removal_to_threshold,
    unknown,
    value_words,
)
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import CULPRIT_SHARE, Policy
from aorta.diagnosis.rank import slow_loaders
from aorta.metrics.node_load import NodeLoad
from aorta.metrics.whatif import Replays
from aorta.units import plural, rank_list, rank_words

KIND = "data_loading"
CPU_FULL = 0.9
"""The CPUs are the limit if the job uses more than this share of those that it may use."""
_NAMED = 4
"""Most ranks that a sentence names twice."""
READING_MB_PER_S = 20.0
"""A disk is not the limit if it is read more slowly than this."""
_MARK_TRACE = (
    "mark data loading with torch.cuda.nvtx.range('data') around next(loader), or record with torch.profiler"
)
_USE_LOADER = "load with torch.utils.data.DataLoader, or record with StepRecorder's data()"


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    threshold, steps, job = policy.data_wait_pct, seen.steps, seen.job
    reason, remedy = steps.too_little(policy), None
    if not reason and steps.loader_absent is not None:
        most = max(100.0 * item.host_ms / item.step_ms for item in steps.costs)
        part = f"it is part of host work, which takes at most {most:.1f} % of a step"
        reason = f"not measured: {steps.loader_absent}; {part}"
        remedy = _MARK_TRACE if steps.traced else _USE_LOADER
    if reason:
        return not_measured(KIND, threshold, STEP_SHARE, reason, remedy=remedy)
    value = max(100.0 * item.loading_ms / item.step_ms for item in steps.costs)
    answer = measured(KIND, value, threshold, STEP_SHARE, fired=value > threshold)
    if not answer.fired:
        return RuleResult(answer)
    ranks = slow_loaders(steps.costs, CULPRIT_SHARE, threshold)
    if not ranks and job.ranks_missing:
        ranks = [item.rank for item in steps.costs]
    loading, step = fmean(item.loading_ms for item in steps.costs), steps.step_ms
    least = min(item.loading_ms for item in steps.costs)
    low = min(removal_to_threshold(step, loading, threshold), least)
    rest = [item.rank for item in steps.costs if item.rank not in ranks]
    others = ""
    if ranks and rest and not steps.blame_absent:
        them = rank_list(ranks) if len(ranks) <= _NAMED else "them"
        waiting = f"{rank_words(rest)} waits" if len(rest) == 1 else "the other ranks wait"
        others = f"; {waiting} for {them} in collectives"
    loaders, deliver = ("loader", "delivers") if len(ranks) == 1 else ("loaders", "deliver")
    cause = f"the {loaders} of {rank_words(ranks)} {deliver} each batch too late{others}"
    return found(
        answer,
        cause,
        _evidence(seen),
        gain(step, low, loading),
        ranks=ranks,
        nodes=job.nodes(ranks),
    )


def _needed(seen: Observation, policy: Policy) -> bool:
    """Returns True if the host's part and unseen time could hold loading above its threshold."""
    steps = seen.steps
    most = max((100.0 * item.host_ms / item.step_ms for item in steps.costs), default=100.0)
    return most + steps.unseen_pct() > policy.data_wait_pct


def _evidence(seen: Observation) -> dict[str, Any]:
    own = [item.data_wait_ms for item in seen.steps.costs]
    evidence: dict[str, Any] = {
        "data_wait_ms_worst_rank": max(own),
        "data_wait_ms_median_rank": median_low(own),
        "others_wait_ms": fmean(item.charged("data_loading") for item in seen.steps.costs),
        "step_ms": seen.steps.step_ms,
        "files": list(seen.steps.files),
    }
    if seen.job.config is not None:
        evidence["dataloader.num_workers"] = seen.job.config.dataloader.num_workers
        evidence["dataset.delay_ms"] = seen.job.config.dataset.delay_ms
    return evidence


def _cost(seen: Observation) -> float:
    return fmean(item.loading_ms for item in seen.steps.costs)


def _removes(finding: Finding, seen: Observation, replays: Replays) -> PredictedRemoval:
    if not finding.ranks:
        return PredictedRemoval("all waits for data loaders", replays.without({"data_loading": 1.0}))
    return PredictedRemoval(
        f"the loader wait of {rank_words(finding.ranks)} beyond that of {_rest(finding.ranks, seen)}",
        replays.as_the_others(("data_loading",), finding.ranks),
        parts=("data_loading",),
        hidden_behind="compute and host work",
    )


def _rest(named: Sequence[int], seen: Observation) -> str:
    """Returns the ranks that are not named: `rank 0`, or `the other ranks`."""
    others = [item.rank for item in seen.steps.costs if item.rank not in named]
    return rank_words(others) if len(others) == 1 else "the other ranks"


def _sub_cause(finding: Finding, seen: Observation, _: Policy) -> SubCause:
    loads = {
        host: item for host, item in seen.around.loads.items() if not finding.nodes or host in finding.nodes
    }
    full = _full_cpus(loads)
    if full is not None:
        return full
    workers = _workers(finding, seen)
    if workers == 0:
        return SubCause(
            "no_workers",
            "the training process loads batches itself (num_workers = 0), so loading never overlaps with "
            "compute",
        )
    reading = max((item.read_mb_per_s or 0.0 for item in loads.values()), default=0.0)
    busy = _busy_share(loads)
    if reading >= READING_MB_PER_S and busy is not None and busy < MOST:
        text = (
            f"the disks read {reading:.0f} MB/s while the job uses {100 * busy:.0f} % of its CPUs: storage "
            "is the limit"
        )
        return SubCause("storage", text, {"disk_read_mb_per_s": reading, "cpu_busy_share": busy})
    if workers is None:
        return unknown("the DataLoader's num_workers was not recorded")
    do = f"{plural(workers, 'worker')} per rank {'does' if workers == 1 else 'do'} not keep up"
    if busy is None:
        return unknown(f"{do}; CPU use was not sampled, so CPUs may be the limit")
    text = f"{do}, and {100 * (1 - busy):.0f} % of the job's CPUs are free"
    return SubCause("workers_saturated", text, {"workers": workers, "cpu_busy_share": busy})


def _workers(finding: Finding, seen: Observation) -> int | None:
    """Returns the workers of each loader that is waited for. None if not recorded, or ranks differ."""
    if seen.job.config is not None:
        return seen.job.config.dataloader.num_workers
    ranks = finding.ranks or list(seen.host.stacks)
    found = {seen.host.stacks[rank].loader_workers for rank in ranks if rank in seen.host.stacks}
    return found.pop() if len(found) == 1 else None


def _full_cpus(loads: Mapping[str, NodeLoad]) -> SubCause | None:
    for host, item in sorted(loads.items()):
        if item.job_cpu_pct is None or not item.cpus_usable:
            continue
        share = item.job_cpu_pct / (100.0 * item.cpus_usable)
        if share >= CPU_FULL:
            text = f"the job uses {100 * share:.0f} % of its {item.cpus_usable:g} CPUs on {host}"
            return SubCause("host_cpu_limit", text, {"cpu_busy_share": share, "cpus": item.cpus_usable})
    return None


def _busy_share(loads: Mapping[str, NodeLoad]) -> float | None:
    shares = [
        item.job_cpu_pct / (100.0 * item.cpus_usable)
        for item in loads.values()
        if item.job_cpu_pct is not None and item.cpus_usable
    ]
    return max(shares, default=None)


def _actions(finding: Finding, seen: Observation) -> list[str]:
    config, ranks, job, actions = seen.job.config, finding.ranks, seen.job, []
    workers = _workers(finding, seen)
    name = "dataloader.num_workers" if config is not None else "the DataLoader's `num_workers`"
    if config is not None and config.dataset.delay_ms > 0:
        delay = config.dataset.delay_ms
        actions.append(f"set dataset.delay_ms to 0 (now {delay:g}: each sample sleeps that long)")
    if workers == 0:
        slow = "; this hides slow loading but does not make it faster" if ranks else ""
        actions.append(f"set {name} to 2 or more (now 0, so training stops while each batch is loaded){slow}")
    elif workers is not None:
        cpus = f" ({job.cpus_usable} CPUs are usable on a node)" if job.cpus_usable else ""
        actions.append(f"raise {name}, now {workers}{cpus}")
    if config is not None and job.cuda and not config.dataloader.pin_memory:
        actions.append("set dataloader.pin_memory to true, so that copies to the GPU overlap with compute")
    if ranks:
        nodes = job.nodes(ranks)
        shared = set(nodes) & {host for rank, host in job.hosts.items() if rank not in ranks}
        if nodes and not shared:
            where = ", ".join(nodes)
            actions.append(f"compare the storage and the CPUs of {where} with those of the other nodes")
        else:
            rest = _rest(ranks, seen)
            on_node = " on the same node" if len(set(job.hosts.values())) > 1 else ""
            actions.append(
                f"compare the files or shards, the disk and the CPU cores of {rank_words(ranks)} with those "
                f"of {rest}{on_node}"
            )
    actions.append(
        "preprocess the samples once, before training, and store them in a few large files on fast storage"
    )
    return actions


def _statement(finding: Finding, seen: Observation) -> str:
    named = [item for item in seen.steps.costs if item.rank in finding.ranks]
    others = [item for item in seen.steps.costs if item.rank not in finding.ranks]
    who, cost = rank_list(finding.ranks), cost_sentence(finding, _cost(seen), seen)
    if not named or not others:
        if len(seen.steps.costs) == 1:
            return f"The process spends {value_words(finding)} % of its step on data loading. {cost}"
        return f"Data loading takes up to {value_words(finding)} % of the step. {cost}"
    most = max(100.0 * item.data_wait_ms / item.step_ms for item in named)
    spends = f"spends {most:.0f} % of its" if len(named) == 1 else f"spend up to {most:.0f} % of their"
    follow = ""
    if any(item.charged("data_loading") > 0 for item in others):
        waiting = f"{rank_words([others[0].rank])} waits" if len(others) == 1 else "the other ranks wait"
        follow = f", while {waiting} for {'it' if len(named) == 1 else 'them'}"
    return f"{who[0].upper()}{who[1:]} {spends} step on data loading{follow}. {cost}"


SPEC = FindingSpec(
    kind=KIND,
    parts=lambda _finding, _seen: ("data",),
    name="data loading",
    subject="data loading",
    value="waiting for data",
    value_of="the worst rank's step",
    measured_from=(
        "time that a rank is blocked on its own loader. The wait that this causes on other ranks is added "
        "to the cost"
    ),
    order=10,
    thresholds=("data_wait_pct",),
    fires_below=False,
    measure=_measure,
    cost=_cost,
    waits_for=("data_loading",),
    of_host_time=False,
    of_kernel_kinds=False,
    waits=lambda _found, seen, _taken: sum(item.charged("data_loading") for item in seen.steps.costs),
    symptom_of=None,
    claims=None,
    yields=False,
    may_wait_for_missing=False,
    sub_causes={
        "host_cpu_limit": "The job uses all the CPUs that it may use on a node.",
        "no_workers": "The training process loads its batches itself.",
        "storage": "Disks are busy reading while most CPUs are free.",
        "workers_saturated": "The loader workers cannot keep up, although CPUs are free.",
    },
    sub_cause=_sub_cause,
    compares_ranks=(),
    removes=_removes,
    least_gain_pct=None,
    unsupported=None,
    lowers={"serialisation": 2, "communication": 2, "between_steps": 1},
    actions=_actions,
    statement=_statement,
    needed=_needed,
    alike=None,
)
