"""Memory pressure: how full memory is, and how often the GPU's allocator had to make room.

A call of cudaMalloc that fails makes the allocator give its whole cache back and wait for the GPU, in the
middle of the step: host time and late ranks are then symptoms of full memory (`is_retrying`).
"""

from __future__ import annotations

from typing import Any

from aorta.artefacts.analysis import Finding, Measured
from aorta.diagnosis import actions
from aorta.diagnosis.context import Answer, Context, not_measured
from aorta.units import BYTES_PER_GIB

USED, RETRIES = "% of memory", "allocator retries a step"
_GPU, _TENSORS = "GPU memory, by the monitor", "GPU memory, by the allocator"
HOST, MACHINE = "the job's memory limit on a host", "a host's memory, by all of its programs"
_OF_HOSTS = frozenset({HOST, MACHINE})
_CRITICAL_PCT = 97.0


def is_retrying(context: Context) -> bool:
    """Whether allocations fail so often in steady steps that memory is the cause of what they cost."""
    use = context.allocator
    retries = use.retries_per_step if use is not None else None
    return retries is not None and retries > context.policy.alloc_retries_per_step


def memory_pressure(context: Context) -> Answer:
    """Peak use of the GPUs' memory, or of the job's memory on the hosts, whichever is fuller; where that is
    below its threshold and allocations fail all the same, how often they do. The job's is of its limit; a job
    without one has the machine's.
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
        cause=_cause(context, where, known[where]),
        ranks=[],
        nodes=[],
        value=value,
        threshold=threshold,
        unit=unit,
        evidence=evidence,
        estimated_speedup=None,
        actions=actions.memory(context, host=where in _OF_HOSTS),
    )
    return measured, finding


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
