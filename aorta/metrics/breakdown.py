"""The exclusive parts of the step, as means over steady steps; they sum to the step exactly, in ns."""

from __future__ import annotations

from collections.abc import Mapping

from aorta.artefacts.measured import BreakdownTable, RankBreakdown
from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_columns import UNTIMED, StepColumns
from aorta.averages import fmean
from aorta.metrics.apportion import apportion
from aorta.metrics.steady import Steady
from aorta.units import ns_to_ms


def breakdown_table(steady: Steady, wait_ns: Mapping[int, int] | None = None) -> BreakdownTable:
    """Mean breakdown of each rank over the steps.

    Args:
        steady: the steps that count, timed part by part.
        wait_ns: each rank's time in collectives before their last rank arrived, summed over these steps; None
            where that could not be told.

    A rank with a step that has no breakdown is left out: its parts are not known.
    """
    rows = []
    for rank in steady.ranks:
        row = _rank(rank, steady.by_rank[rank], None if wait_ns is None else wait_ns.get(rank))
        if row is not None:
            rows.append(row)
    timings = sorted({label.timing for steps in steady.by_rank.values() for label in steps.labels})
    return BreakdownTable(steps=len(steady), per_rank=rows, timing=", ".join(timings) or None)


def _rank(rank: int, steps: StepColumns, wait_ns: int | None) -> RankBreakdown | None:
    count = len(steps)
    if not count or (steps.column("compute_ns") == ABSENT).any():
        return None
    copies = _copies(steps)
    compute_ns, exposed_ns, data_ns, host_ns, comm, hidden = (
        int(steps.column(name).sum())
        for name in ("compute_ns", "exposed_comm_ns", "data_wait_ns", "host_ns", "comm_ns", "hidden_comm_ns")
    )
    totals = [compute_ns, exposed_ns, copies or 0, data_ns, host_ns]
    whole = int(steps.duration_ns.sum())
    assert sum(totals) == whole, f"rank {rank}: parts sum to {sum(totals)} ns, the steps to {whole} ns"
    step_ns = round(whole / count)
    compute, exposed, copy, data, host = apportion(step_ns, totals)
    waited = None if wait_ns is None else min(wait_ns, comm)
    return RankBreakdown(
        rank=rank,
        host=steps.labels[0].host,
        steps=count,
        step_ms=ns_to_ms(step_ns),
        compute_ms=ns_to_ms(compute),
        exposed_comm_ms=ns_to_ms(exposed),
        exposed_copy_ms=None if copies is None else ns_to_ms(copy),
        data_wait_ms=ns_to_ms(data),
        host_ms=ns_to_ms(host),
        comm_ms=ns_to_ms(round(comm / count)),
        overlap_ratio=hidden / comm if comm else None,
        wait_ms=None if waited is None else ns_to_ms(round(waited / count)),
        transfer_ms=None if waited is None else ns_to_ms(round(comm / count) - round(waited / count)),
    )


def _copies(steps: StepColumns) -> int | None:
    """Summed exposed copies; None where any step did not time them (they are then in its host part)."""
    copies = steps.column("exposed_copy_ns")
    return None if (copies == ABSENT).any() else int(copies.sum())


def untimed_calls(detailed: Steady) -> float:
    """Returns the mean of untimed calls per step, of the rank with most."""
    columns = [steps.column(UNTIMED) for steps in detailed.by_rank.values() if len(steps)]
    return max((float(column.mean()) for column in columns), default=0.0)


def untimed_note(calls: float, breakdown: BreakdownTable) -> tuple[str, ...]:
    """Returns that communication takes longer than was timed. Empty if all calls were timed."""
    if not calls or not breakdown.per_rank:
        return ()
    least = fmean(row.comm_ms for row in breakdown.per_rank)
    said = f"{calls:.3g} calls of torch.distributed per step were seen but could not be timed"
    return (f"communication takes at least {least:.3g} ms per step: {said}",)
