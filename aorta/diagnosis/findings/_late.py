"""Says how much longer late ranks take than the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aorta.artefacts.analysis import Finding
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.rank import RankCosts
from aorta.units import rank_words


def compute_words(late: Sequence[int], finding: Finding, seen: Observation) -> str:
    """`on rank 2 compute takes 67.6 ms per step, on the others 51.9 to 52.2 ms`, if that is measured."""
    who, known = rank_words(list(late)), _beside(late, finding, seen, _shown_compute)
    if known is None:
        return f"compute takes longer on {who}"
    return f"compute takes {known.mine} ms per step on {who}, on {known.others}"


def host_words(late: Sequence[int], finding: Finding, seen: Observation) -> str:
    """`rank 0 spends 119.1 ms per step on the host, ...; the other 63.5 ms`, if that is measured."""
    who, spends = rank_words(list(late)), "spends" if len(late) == 1 else "spend"
    known = _beside(late, finding, seen, _shown_host) or _beside(late, finding, seen, _host_work)
    if known is None:
        return f"{who} {spends} more time on host work, outside of compute and data loading"
    return (
        f"{who} {spends} {known.mine} ms per step on host work, outside of compute and data loading; "
        f"{known.others}"
    )


class _Beside(NamedTuple):
    """Times per step of the late ranks and of the others, in words."""

    mine: str
    others: str


def _beside(
    late: Sequence[int], finding: Finding, seen: Observation, takes: Callable[[RankCosts], float]
) -> _Beside | None:
    """Returns the times; None where the late ranks do not take longer than every other rank."""
    by_rank = {item.rank: takes(item) for item in seen.steps.costs}
    mine = [by_rank[rank] for rank in late if rank in by_rank]
    others = [ms for rank, ms in by_rank.items() if rank not in finding.ranks]
    if not mine or not others or min(mine) <= max(others):
        return None
    who = "the other rank" if len(others) == 1 else "the others"
    return _Beside(_range(mine), f"{who} {_range(others)} ms")


def _shown_compute(item: RankCosts) -> float:
    return item.compute_ms


def _shown_host(item: RankCosts) -> float:
    return item.host_ms


def _host_work(item: RankCosts) -> float:
    return item.takes_ms("host")


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"
