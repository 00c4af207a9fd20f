"""Why ranks are late that others wait for: throttling, a neighbour, the node, compute, the host."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Finding
from aorta.diagnosis.context import Context
from aorta.diagnosis.rank import rank_words
from aorta.diagnosis.sub_cause import MOST, SubCause, unknown
from aorta.metrics.node_load import NodeLoad

OTHERS_CPU_PCT = 50.0
"""Of one CPU, used by others than the job: above it they are a noisy neighbour."""
THROTTLED = 0.5
"""Share of samples."""


def straggler(finding: Finding, context: Context) -> SubCause:
    """The cause behind a `straggler` finding."""
    if not finding.ranks:
        shared = context.evidence.cores_shared
        return (
            SubCause("shared_cpus", shared) if shared else unknown("the late rank changes from step to step")
        )
    compute, host = finding.evidence["waits_for_compute_ms"], finding.evidence["waits_for_host_ms"]
    hosts = finding.evidence.get("ranks_late_by_host", [])
    late = [rank for rank in finding.ranks if (rank in hosts) == (host > compute)] or finding.ranks
    loss = _clock_loss(late, finding, context) if compute >= host else None
    found = _throttled(late, loss, finding, context) if compute >= host else None
    found = found or _neighbour(finding, context) or _slow_node(context)
    if found is not None:
        return found
    who = rank_words(late)
    if compute < host:
        spends = "spends" if len(late) == 1 else "spend"
        return SubCause("host_work", f"{who} {spends} more time on the host, outside of compute and loader")
    text = f"on {who} compute takes longer"
    if loss is not None:
        text += f", at {100 * (1 - loss):.0f} % of the others' clock"
    elif context.evidence.loads:
        text += "; neither throttling nor other load was seen"
    return SubCause("compute", text, _measured(loss))


def _measured(loss: float | None) -> dict[str, float]:
    return {} if loss is None else {"clock_loss": loss}


def _clock_loss(late: Sequence[int], finding: Finding, context: Context) -> float | None:
    """By how much the clock of the GPUs of `late` is below that of those that are not late, 0 to 1; None
    where it was not sampled.
    """
    clocks = {rank: item.clock_mhz for rank, item in context.evidence.throttling.items() if item.clock_mhz}
    own = [clock for rank, clock in clocks.items() if rank in late]
    others = [clock for rank, clock in clocks.items() if rank not in finding.ranks]
    return max(1 - min(own) / max(others), 0.0) if own and others else None


def _throttled(
    late: Sequence[int], loss: float | None, finding: Finding, context: Context
) -> SubCause | None:
    """A GPU that alone is slowed down, by as much as its rank is late for: at full load many report the limit
    of their power all the time, and lose a hundredth of their clock to it.
    """
    waits = finding.evidence["waits_for_compute_ms"]
    if loss is not None and loss * finding.evidence["step_ms"] < MOST * waits:
        return None
    own = [context.evidence.throttling[rank] for rank in late if rank in context.evidence.throttling]
    others = [item for rank, item in context.evidence.throttling.items() if rank not in finding.ranks]
    for name, code, word in (
        ("thermal", "thermal_throttling", "heat"),
        ("power", "power_throttling", "power"),
    ):
        mine = max((getattr(item, name) for item in own), default=0.0)
        its = max((getattr(item, name) for item in others), default=0.0)
        if mine >= THROTTLED and its < mine / 2:
            text = (
                f"its GPU was slowed down for {word} in {100 * mine:.0f} % of the samples, the others in "
                f"{100 * its:.0f} %"
            )
            if loss is not None:
                text += f"; its clock is {100 * loss:.0f} % lower"
            evidence = {f"{name}_share": mine, f"{name}_share_others": its}
            return SubCause(code, text, evidence | _measured(loss))
    return None


def _neighbour(finding: Finding, context: Context) -> SubCause | None:
    loads = {
        host: load
        for host, item in context.evidence.loads.items()
        if (load := _foreign(context, host, item)) is not None
    }
    own = [loads[host] for host in finding.nodes if host in loads]
    others = [load for host, load in loads.items() if host not in finding.nodes]
    most = max(own, default=0.0)
    if most < OTHERS_CPU_PCT or (others and max(others) >= most / 2):
        return None
    text = f"other programs use {most:.0f} % of a CPU on {', '.join(finding.nodes)}: a noisy neighbour"
    return SubCause("noisy_neighbour", text, {"foreign_cpu_pct": most})


def _foreign(context: Context, host: str, item: NodeLoad) -> float | None:
    """CPU that others use there, 100 a CPU."""
    cpus = context.evidence.cpus_machine.get(host)
    if item.cpu_pct is None or item.job_cpu_pct is None or not cpus:
        return None
    return max(item.cpu_pct * cpus - item.job_cpu_pct, 0.0)


def _slow_node(context: Context) -> SubCause | None:
    late = context.model.lateness if context.model else None
    if late is None or late.scope != "node":
        return None
    hosts = [item.host for item in late.nodes]
    text = f"all ranks of {', '.join(hosts)} are late together, and no other rank is: the node, not a rank"
    return SubCause("slow_node", text, {"late_nodes": hosts})
