"""POP efficiencies: how much of the ranks' time is useful, and what takes the rest.

POP Centre of Excellence, Standard Metrics for Performance Analysis; the additive ones as its additive
hierarchy has them. The devices' branch: orchestration is what the hosts leave of a device's time. A device
that waits in a collective while its own host works is no busier by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.replayed import DevicePop, Pop
from aorta.averages import fmean


def pop(
    useful_ms: Mapping[int, float],
    step_ms: float,
    *,
    ideal_ms: float | None = None,
    nodes: Mapping[int, str] | None = None,
    busy_ms: Mapping[int, float] | None = None,
    reason: str | None = None,
) -> Pop | None:
    """The factors of one run; None where nothing is useful.

    Args:
        useful_ms: U_i, useful compute of each rank in a step.
        step_ms: T, the step.
        ideal_ms: T_ideal, the step with every transfer taking no time; None where it is not known.
        nodes: each rank's node; None where they are not known.
        busy_ms: of GPUs, useful compute, exposed communication and copies of each rank, without waits that
            its own host takes anyway; None without GPUs.
        reason: why what is None is not known.
    """
    ranks, most = len(useful_ms), max(useful_ms.values(), default=0.0)
    if most <= 0.0 or step_ms <= 0.0:
        return None
    mean = fmean(useful_ms.values())
    balance, communication = mean / most, most / step_ms
    # A replay cannot do away with work, nor the network slow anything down.
    ideal = None if ideal_ms is None else min(max(ideal_ms, most), step_ms)
    inter, intra = _nodes(useful_ms, nodes)
    return Pop(
        ranks=ranks,
        step_ms=step_ms,
        useful_ms=sum(useful_ms.values()),
        parallel=balance * communication,
        load_balance=balance,
        communication=communication,
        serialisation=None if ideal is None else most / ideal,
        transfer=None if ideal is None else ideal / step_ms,
        load_balance_inter_node=inter,
        load_balance_intra_node=intra,
        additive_load_balance=1.0 - (most - mean) / step_ms,
        additive_communication=communication,
        additive_serialisation=None if ideal is None else 1.0 - (ideal - most) / step_ms,
        additive_transfer=None if ideal is None else 1.0 - (step_ms - ideal) / step_ms,
        device=_device(balance, most, max(busy_ms.values()), step_ms) if busy_ms else None,
        reason=reason,
    )


def run_pop(
    rows: Sequence[RankBreakdown],
    *,
    ideal_ratio: float | None,
    nodes: Mapping[int, str],
    cuda: bool,
    reason: str | None = None,
) -> Pop | None:
    """The factors of the breakdown `rows`; `ideal_ratio` is T_ideal / T by the replay."""
    if not rows:
        return None
    step = fmean(row.step_ms for row in rows)
    busy = {
        row.rank: row.compute_ms
        + row.exposed_comm_ms
        + (row.exposed_copy_ms or 0.0)
        - (row.own_host_wait_ms or 0.0)
        for row in rows
    }
    known = all(row.rank in nodes for row in rows)
    return pop(
        {row.rank: row.compute_ms for row in rows},
        step,
        ideal_ms=None if ideal_ratio is None else ideal_ratio * step,
        nodes=nodes if known else None,
        busy_ms=busy if cuda else None,
        reason=reason,
    )


def _nodes(
    useful_ms: Mapping[int, float], nodes: Mapping[int, str] | None
) -> tuple[float | None, float | None]:
    """Balance between nodes, by their mean ranks, and within the one with the most work."""
    if nodes is None:
        return None, None
    by_node: dict[str, list[float]] = {}
    for rank, useful in useful_ms.items():
        by_node.setdefault(nodes[rank], []).append(useful)
    means = [fmean(values) for values in by_node.values()]
    most = max(means)
    return fmean(useful_ms.values()) / most, most / max(useful_ms.values())


def _device(balance: float, most: float, busiest: float, step_ms: float) -> DevicePop:
    return DevicePop(
        parallel=balance * most / step_ms,
        load_balance=balance,
        communication=most / busiest,
        orchestration=busiest / step_ms,
    )
