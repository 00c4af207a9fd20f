"""Memory pressure: how full memory is, how often the GPU's allocator had to make room, and what nodes swap.

A call of cudaMalloc that fails makes the allocator give its whole cache back and wait for the GPU, in the
middle of the step: host time and late ranks are then symptoms of full memory (`is_retrying`). So are the
loaders, late ranks and host time of nodes that read pages back from swap (`waiting_for_swap`): each such page
is one that a process needed and had to wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aorta.artefacts.analysis import Finding, Measured
from aorta.diagnosis import actions
from aorta.diagnosis.context import Answer, Context, not_measured
from aorta.units import BYTES_PER_GIB, plural

USED, RETRIES, SWAPPED = "% of memory", "allocator retries a step", "MB/s of swap"
_GPU, _TENSORS = "GPU memory, by the monitor", "GPU memory, by the allocator"
HOST, MACHINE = "the job's memory limit on a host", "a host's memory, by all of its programs"
_OF_HOSTS = frozenset({HOST, MACHINE})
_CRITICAL_PCT = 97.0
_NAMED = 3
"""Nodes that are named."""
_WAITED_SHARE = 0.02
"""Of the time: where the kernel saw processes wait for memory less than this, swapping costs nothing."""


def is_retrying(context: Context) -> bool:
    """Whether allocations fail so often in steady steps that memory is the cause of what they cost."""
    use = context.allocator
    retries = use.retries_per_step if use is not None else None
    return retries is not None and retries > context.policy.alloc_retries_per_step


def swapping(context: Context) -> dict[str, float]:
    """Hosts that move more between memory and swap than the threshold, in MB/s, in and out together.

    A host on which the job's own cgroup has nothing in swap is none: what moves there is not the job's.
    """
    found = {}
    for host, load in context.evidence.loads.items():
        rates = [rate for rate in (load.swap_in_mb_per_s, load.swap_out_mb_per_s) if rate is not None]
        if sum(rates) > context.policy.swap_mb_per_s and load.job_swap_bytes != 0:
            found[host] = sum(rates)
    return found


def waiting_for_swap(context: Context) -> frozenset[str]:
    """Those of `swapping` on which processes wait: what they read back alone passes the threshold, and the
    kernel, where it counts that, saw somebody wait.
    """
    found = set()
    for host in swapping(context):
        load = context.evidence.loads[host]
        waited = load.stall_share is None or load.stall_share >= _WAITED_SHARE
        if waited and (load.swap_in_mb_per_s or 0.0) > context.policy.swap_mb_per_s:
            found.add(host)
    return frozenset(found)


def is_symptom(finding: Finding, context: Context) -> bool:
    """Whether what a finding costs is lost to memory: allocations fail, or all of its nodes wait for swap."""
    if finding.kind in ("host_bound", "straggler") and is_retrying(context):
        return True
    nodes = finding.nodes or set(context.hosts.values())
    return finding.kind in ("host_bound", "straggler", "data_loading") and waiting_for_swap(
        context
    ).issuperset(nodes)


def memory_pressure(context: Context) -> Answer:
    """Peak use of the GPUs' memory, or of the job's memory on the hosts, whichever is fuller; where that is
    below its threshold and allocations fail all the same, how often they do; else what a host swaps, where it
    is not a host's memory that is full. The job's is of its limit; a job without one has the machine's.
    """
    threshold, known = context.policy.memory_used_pct, _readings(context)
    if not known:
        without = "no GPU" if not context.cuda else "no reading of GPU memory"
        reason = f"not measurable: {without}, and no memory of a host was sampled in the steady window"
        return not_measured("memory_pressure", threshold, USED, reason), None
    where = max(known, key=lambda name: known[name])
    value, unit = known[where], USED
    if value <= threshold and is_retrying(context):
        assert context.allocator is not None
        value, threshold, unit = _retries(context), context.policy.alloc_retries_per_step, RETRIES
        where = max(known.keys() - _OF_HOSTS, key=lambda name: known[name], default=where)
    hosts = swapping(context) if not is_retrying(context) else {}
    if hosts and (value <= threshold or where not in _OF_HOSTS):
        value, threshold, unit = max(hosts.values()), context.policy.swap_mb_per_s, SWAPPED
        where = max(known.keys() & _OF_HOSTS, key=lambda name: known[name], default=where)
    measured = Measured(
        kind="memory_pressure", value=value, threshold=threshold, unit=unit, fired=value > threshold
    )
    if not measured.fired:
        return measured, None
    evidence: dict[str, Any] = {"of": where, "used_pct": known[where], **known, **_allocator(context)}
    if context.memory_estimate is not None:
        evidence["accounting_upper_estimate_pct"] = context.memory_estimate.used_pct
    finding = Finding(
        kind="memory_pressure",
        severity="critical" if known[where] >= _CRITICAL_PCT or is_retrying(context) else "warning",
        cause=_swap_cause(hosts) if unit == SWAPPED else _cause(context, where, known[where]),
        ranks=_ranks(context, hosts),
        nodes=sorted(hosts),
        value=value,
        threshold=threshold,
        unit=unit,
        evidence=evidence,
        estimated_speedup=None,
        actions=actions.memory(context, host=where in _OF_HOSTS, swapping=sorted(hosts)),
    )
    return measured, finding


def _ranks(context: Context, hosts: Collection[str]) -> list[int]:
    """Those of hosts that swap; none named where all do."""
    found = sorted(rank for rank, host in context.hosts.items() if host in hosts)
    return found if len(found) < len(context.hosts) else []


def _swap_cause(hosts: Mapping[str, float]) -> str:
    named = sorted(hosts)[:_NAMED]
    if len(hosts) > len(named):
        named.append(plural(len(hosts) - len(named), "other node"))
    moves = "moves" if len(hosts) == 1 else "move"
    return f"{' and '.join(named)} {moves} pages between memory and swap during the steps"


def _readings(context: Context) -> dict[str, float]:
    use, allocator = context.utilization, context.allocator
    readings = {
        _GPU: use.gpu_memory_used_pct if use else None,
        _TENSORS: allocator.tensors_pct if allocator else None,
        HOST: use.job_memory_used_pct if use else None,
        MACHINE: use.host_memory_used_pct if use and use.job_memory_used_pct is None else None,
    }
    return {name: value for name, value in readings.items() if value is not None}


def _retries(context: Context) -> float:
    return (context.allocator.retries_per_step if context.allocator else None) or 0.0


def _allocator(context: Context) -> dict[str, Any]:
    """What the allocator recorded; nothing where it did not."""
    use = context.allocator
    if use is None:
        return {}
    measured = {
        "allocator_reserved_pct": use.reserved_pct,
        "alloc_retries_per_step": use.retries_per_step,
        "fragmentation": use.fragmentation,
    }
    return {name: value for name, value in measured.items() if value is not None}


def _cause(context: Context, where: str, used_pct: float) -> str:
    use = context.allocator
    words = f"{where} is nearly full at its peak" if used_pct > context.policy.memory_used_pct else ""
    total = use.total_bytes if use is not None and where not in _OF_HOSTS else None
    size = f"{used_pct / 100 * total / BYTES_PER_GIB:.1f} of {total / BYTES_PER_GIB:.1f} GiB" if total else ""
    said = [words or f"{where} peaks at {used_pct:.0f} %"]
    if size:
        said.append(size)
    if use is not None and where not in _OF_HOSTS:
        if use.retries_per_step is not None:
            said.append(f"{use.retries_per_step:.1f} allocations a step failed and were repeated")
        if use.fragmentation is not None:
            said.append(f"{100 * use.fragmentation:.0f} % of what the allocator holds is in no tensor")
    return ", ".join(said)
