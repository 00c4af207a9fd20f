"""Memory pressure: memory is nearly full, allocations fail, or nodes swap.

What it finds:
    The peak use of GPU memory or of the job's memory on its nodes, whichever is fuller. If it is below its
    threshold, the value is how often GPU allocations fail, or how much a node moves to and from swap.
Why it costs time:
    If a call to cudaMalloc fails, the allocator returns its whole cache and waits for the GPU, in the middle
    of the step. A process has to wait for each page that is read back from swap. Host work, slow loaders and
    late ranks are then symptoms. Memory that is only full does not cost time yet.
What to do:
    Use a smaller batch with gradient accumulation, shard or recompute more, or request more node memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aorta.artefacts.analysis import Finding
from aorta.config.schema import Config
from aorta.diagnosis.finding import (
    FindingSpec,
    Found,
    RuleResult,
    SubCause,
    found,
    measured,
    not_measured,
    unknown,
)
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.policy import Policy
from aorta.units import BYTES_PER_GIB, plural

KIND = "memory_pressure"
USED, RETRIES, SWAPPED = "% of memory", "allocator retries per step", "MB/s of swap"
_GPU, _TENSORS = "GPU memory, by the monitor", "GPU memory, by the allocator"
HOST, MACHINE = "the job's memory limit on a node", "a node's memory, by all of its programs"
_IN_WORDS = {
    _GPU: "GPU memory",
    _TENSORS: "GPU memory in tensors",
    HOST: "the job's memory on a node",
    MACHINE: "a node's memory",
}
"""Memories as sentences name them."""
_OF_HOSTS = frozenset({HOST, MACHINE})
CRITICAL_PCT = 97.0
"""The finding is critical if at least this share of the memory is in use."""
_NAMED = 3
"""Number of nodes that are named."""
WAITED_SHARE = 0.02
"""Swapping costs nothing if the kernel reports that processes wait for memory for less than this share of
the time.
"""
OUTSIDE_PCT = 20.0
"""Memory outside tensors is the cause if it takes at least this percentage of the GPU's memory."""


def is_retrying(seen: Observation, policy: Policy) -> bool:
    """Returns True if allocations fail so often in steady steps that memory causes what they cost."""
    use = seen.monitored.allocator
    retries = use.retries_per_step if use is not None else None
    return retries is not None and retries > policy.alloc_retries_per_step


def swapping(seen: Observation, policy: Policy) -> dict[str, float]:
    """Returns hosts that move more between memory and swap than the threshold, in MB/s, in and out together.

    Hosts whose job cgroup has nothing in swap are left out: the swap traffic is someone else's.
    """
    found = {}
    for host, load in seen.around.loads.items():
        rates = [rate for rate in (load.swap_in_mb_per_s, load.swap_out_mb_per_s) if rate is not None]
        if sum(rates) > policy.swap_mb_per_s and load.job_swap_bytes != 0:
            found[host] = sum(rates)
    return found


def waiting_for_swap(seen: Observation, policy: Policy) -> frozenset[str]:
    """Returns the hosts of `swapping` on which processes wait. Reading back alone passes the threshold
    there, and the kernel saw a process wait, if it counts that.
    """
    found = set()
    for host in swapping(seen, policy):
        load = seen.around.loads[host]
        waited = load.stall_share is None or load.stall_share >= WAITED_SHARE
        if waited and (load.swap_in_mb_per_s or 0.0) > policy.swap_mb_per_s:
            found.add(host)
    return frozenset(found)


def _claims(other: FindingSpec, finding: Finding, _: Found, seen: Observation, policy: Policy) -> bool:
    """Returns True if what a finding costs is lost to memory: allocations fail, or all of its nodes wait for
    swap. A failed allocation holds up compute and host; a page in swap holds up a loader, too.
    """
    if "host" in other.waits_for and is_retrying(seen, policy):
        return True
    nodes = finding.nodes or set(seen.job.hosts.values())
    return bool(other.waits_for) and waiting_for_swap(seen, policy).issuperset(nodes)


def _measure(seen: Observation, policy: Policy) -> RuleResult:
    """The job's memory is a share of its limit; a job without a limit has the machine's."""
    threshold, known, allocator = policy.memory_used_pct, _readings(seen), seen.monitored.allocator
    if not known:
        without = "no GPU" if not seen.job.cuda else "no reading of GPU memory"
        reason = f"not measured: {without}, and no memory of a node was sampled in the steady window"
        return not_measured(KIND, threshold, USED, reason)
    where = max(known, key=lambda name: known[name])
    value, unit = known[where], USED
    retrying = is_retrying(seen, policy)
    if value <= threshold and retrying:
        assert allocator is not None
        value, threshold, unit = (allocator.retries_per_step or 0.0, policy.alloc_retries_per_step, RETRIES)
        where = max(known.keys() - _OF_HOSTS, key=lambda name: known[name], default=where)
    hosts = {} if retrying else swapping(seen, policy)
    if hosts and (value <= threshold or where not in _OF_HOSTS):
        value, threshold, unit = max(hosts.values()), policy.swap_mb_per_s, SWAPPED
        where = max(known.keys() & _OF_HOSTS, key=lambda name: known[name], default=where)
    answer = measured(KIND, value, threshold, unit, fired=value > threshold)
    if not answer.fired:
        return RuleResult(answer)
    evidence: dict[str, Any] = {"of": where, "used_pct": known[where], **known, **_allocator(seen)}
    if seen.monitored.memory_estimate is not None:
        evidence["accounting_upper_estimate_pct"] = seen.monitored.memory_estimate.used_pct
    nearly_full = known[where] > policy.memory_used_pct
    return found(
        answer,
        _swap_cause(hosts) if unit == SWAPPED else _cause(seen, where, known[where], full=nearly_full),
        evidence,
        None,
        ranks=_ranks(seen, hosts),
        nodes=sorted(hosts),
        critical=known[where] >= CRITICAL_PCT or retrying,
    )


def _ranks(seen: Observation, hosts: Collection[str]) -> list[int]:
    """Returns the ranks of hosts that swap; none where all do."""
    found = sorted(rank for rank, host in seen.job.hosts.items() if host in hosts)
    return found if len(found) < len(seen.job.hosts) else []


def _swap_cause(hosts: Mapping[str, float]) -> str:
    named = sorted(hosts)[:_NAMED]
    if len(hosts) > len(named):
        named.append(plural(len(hosts) - len(named), "other node"))
    moves = "moves" if len(hosts) == 1 else "move"
    return f"{' and '.join(named)} {moves} pages between memory and swap during the steps"


def _readings(seen: Observation) -> dict[str, float]:
    use, allocator = seen.monitored.utilization, seen.monitored.allocator
    readings = {
        _GPU: use.gpu_memory_used_pct if use else None,
        _TENSORS: allocator.tensors_pct if allocator else None,
        HOST: use.job_memory_used_pct if use else None,
        MACHINE: use.host_memory_used_pct if use and use.job_memory_used_pct is None else None,
    }
    return {name: value for name, value in readings.items() if value is not None}


def _allocator(seen: Observation) -> dict[str, Any]:
    """Returns what the allocator recorded; nothing where it did not."""
    use = seen.monitored.allocator
    if use is None:
        return {}
    known = {
        "allocator_reserved_pct": use.reserved_pct,
        "alloc_retries_per_step": use.retries_per_step,
        "fragmentation": use.fragmentation,
    }
    return {name: value for name, value in known.items() if value is not None}


def _cause(seen: Observation, where: str, used_pct: float, *, full: bool) -> str:
    use = seen.monitored.allocator if where not in _OF_HOSTS else None
    total = use.total_bytes if use is not None else None
    of = _IN_WORDS[where]
    said = [f"{of} is nearly full at its peak" if full else f"{of} peaks at {used_pct:.0f} %"]
    if total:
        said.append(f"{used_pct / 100 * total / BYTES_PER_GIB:.1f} of {total / BYTES_PER_GIB:.1f} GiB")
    if use is not None:
        if use.retries_per_step is not None:
            said.append(f"{use.retries_per_step:.1f} allocations per step failed and were retried")
        if use.fragmentation is not None:
            said.append(
                f"{100 * use.fragmentation:.0f} % of the allocator's memory does not belong to tensors"
            )
    return ", ".join(said)


def _sub_cause(finding: Finding, seen: Observation, policy: Policy) -> SubCause:
    if finding.nodes:
        return _swapping(finding.nodes, seen, policy)
    of = finding.evidence.get("of")
    if of == HOST:
        return _host_limit(seen)
    if of == MACHINE:
        return SubCause(
            "host_memory", "the node's memory is nearly full, and the job has no limit of its own"
        )
    if is_retrying(seen, policy):
        text = "allocations fail: the allocator returns its cache, and the host waits until the GPU is done"
        return SubCause("allocator_retries", text)
    return _of_gpu(seen)


def _of_gpu(seen: Observation) -> SubCause:
    """Returns the cause of full GPU memory: tensors, or something else."""
    use, allocator = seen.monitored.utilization, seen.monitored.allocator
    full, held = use.gpu_memory_used_pct if use else None, allocator.tensors_pct if allocator else None
    if full is None or held is None:
        return unknown("only one of two readings is available: the driver's or the allocator's")
    evidence = {"driver_pct": full, "allocator_peak_pct": held}
    if full - held >= OUTSIDE_PCT:
        reserved = allocator.reserved_pct if allocator else None
        what = "cached or fragmented blocks, or other programs"
        if reserved is not None:
            cached = reserved - held >= full - reserved
            what = "blocks that the allocator keeps" if cached else "other programs, or libraries"
        text = f"{full:.0f} % are in use, tensors hold {held:.0f} % at their peak: {what}"
        return SubCause("outside_tensors", text, evidence)
    return SubCause("tensors", f"the program's own tensors hold {held:.0f} % at their peak", evidence)


def _swapping(nodes: list[str], seen: Observation, policy: Policy) -> SubCause:
    rates = swapping(seen, policy)
    host = max(nodes, key=lambda name: rates[name])
    load = seen.around.loads[host]
    known = {
        "swap_in_mb_per_s": load.swap_in_mb_per_s,
        "swap_out_mb_per_s": load.swap_out_mb_per_s,
        "swap_used_bytes": load.swap_used_bytes,
        "job_swap_bytes": load.job_swap_bytes,
        "memory_stall_share": load.stall_share,
    }
    ways = (("read back", load.swap_in_mb_per_s), ("written out", load.swap_out_mb_per_s))
    moved = " and ".join(f"{rate:.1f} MB/s are {way}" for way, rate in ways if rate is not None)
    text = f"on {host} {moved}"
    if load.job_swap_bytes is None:
        text += "; it was not measured if these pages belong to the job"
    else:
        text += f"; up to {load.job_swap_bytes / BYTES_PER_GIB:.2f} GiB of the job are in swap"
    if load.stall_share is not None:
        text += f"; at least one process waited for memory in {100 * load.stall_share:.0f} % of the time"
    return SubCause("swapping", text, {name: value for name, value in known.items() if value is not None})


def _host_limit(seen: Observation) -> SubCause:
    hits = [item.limit_hits for item in seen.around.loads.values() if item.limit_hits is not None]
    text = "the job's memory is near the limit of its cgroup"
    if not hits:
        return SubCause("host_limit", text)
    return SubCause(
        "host_limit", f"{text}, and hit it {max(hits):.0f} times during the steps", {"limit_hits": max(hits)}
    )


def _actions(finding: Finding, seen: Observation) -> list[str]:
    config = seen.job.config
    if finding.evidence["of"] in _OF_HOSTS:
        return _host_actions(finding, config)
    if config is None:
        return ["use a smaller batch with gradient accumulation, or shard the model's states over ranks"]
    batch, accumulation = config.training.batch_size, config.training.gradient_accumulation
    actions = [
        f"lower training.batch_size (now {batch}), raise training.gradient_accumulation (now {accumulation})"
    ]
    if config.training.mixed_precision == "none":
        actions.append(
            "set training.mixed_precision to bf16 (now none): activations then take half the memory"
        )
    if config.distributed.strategy == "ddp":
        actions.append("set distributed.strategy to fsdp (now ddp): ranks share the model's states")
    elif config.fsdp.sharding_strategy != "full_shard":
        now = config.fsdp.sharding_strategy
        actions.append(f"set fsdp.sharding_strategy to full_shard (now {now}): ranks share all states")
    return [*actions, "recompute activations in the backward pass"]


def _host_actions(finding: Finding, config: Config | None) -> list[str]:
    count = config.dataloader.num_workers if config is not None else None
    workers = f"dataloader.num_workers, now {count}" if count is not None else "dataloader.num_workers"
    fewer = f"use fewer loader workers ({workers}): each worker has its own copies"
    nodes = ", ".join(finding.nodes)
    look = [
        f"find out on {nodes} which programs use the memory (smem, or ps by VmSwap), and keep other programs "
        "off the node"
    ]
    return [
        *(look if finding.nodes else []),
        "ask for more memory (sbatch --mem): above the limit, the kernel kills processes of the job",
        *([fewer] if count != 0 else []),
    ]


def _statement(finding: Finding, _: Observation) -> str:
    of, used = _IN_WORDS[finding.evidence["of"]], finding.evidence["used_pct"]
    words = f"{of} is {finding.value:.0f} % full at its peak"
    if finding.unit == SWAPPED:
        words = f"{finding.cause}, {finding.value:.1f} MB/s"
    elif finding.unit == RETRIES:
        words = f"{finding.value:.1f} allocations per step fail, and {of} is {used:.0f} % full"
    return f"Memory pressure: {words}."


SPEC = FindingSpec(
    kind=KIND,
    name="memory pressure",
    subject="memory pressure",
    value="peak memory use",
    value_of="",
    measured_from=(
        "GPU memory, and the job's memory as a share of its limit; without a limit, the node's memory"
    ),
    order=60,
    thresholds=("memory_used_pct", "alloc_retries_per_step", "swap_mb_per_s"),
    fires_below=False,
    measure=_measure,
    cost=None,
    waits_for=(),
    of_host_time=False,
    of_kernel_kinds=False,
    waits=None,
    symptom_of=None,
    claims=_claims,
    yields=False,
    may_wait_for_missing=False,
    sub_causes={
        "swapping": "A node moves pages between memory and swap.",
        "host_limit": "The job's memory is near the limit of its cgroup.",
        "host_memory": "The node's memory is nearly full, and the job has no limit of its own.",
        "allocator_retries": "Allocations on the GPU fail and are repeated.",
        "outside_tensors": "Much of the GPU memory in use does not belong to tensors.",
        "tensors": "The program's own tensors fill the GPU's memory.",
    },
    sub_cause=_sub_cause,
    compares_ranks=("swapping",),
    removes=None,
    least_gain_pct=None,
    unsupported=None,
    needed=None,
    alike=None,
    parts=None,
    lowers={"computation_scalability": 2},
    actions=_actions,
    statement=_statement,
)
