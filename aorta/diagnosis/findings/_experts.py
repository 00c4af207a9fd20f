"""Experts that get more tokens than others: their ranks compute for longer and send more back."""

from __future__ import annotations

from collections.abc import Collection

from aorta.averages import fmean
from aorta.diagnosis.observation import Observation
from aorta.units import rank_words

CODE = "uneven_experts"
MORE_TOKENS = 1.3
"""A rank's experts are busier if they receive at least this many times the bytes of the other ranks."""
ACTION = (
    "balance the tokens of the experts: a larger auxiliary loss, a capacity factor, or more replicas of the "
    "busy expert"
)


def times(ranks: Collection[int], seen: Observation) -> float | None:
    """Returns the bytes of the late ranks in all-to-all ÷ the bytes of the other ranks. None if the late
    ranks do not exchange more, or if there is no all-to-all.

    Args:
        ranks: that are late.
        seen: what was observed.
    """
    loads = seen.steps.exchanged
    late = [loads[rank] for rank in ranks if rank in loads]
    others = [load for rank, load in loads.items() if rank not in ranks]
    if not late or not others or not fmean(others):
        return None
    found = min(late) / fmean(others)
    return found if found >= MORE_TOKENS else None


def words(ranks: list[int], more: float) -> str:
    """Returns the cause in words."""
    exchange = "exchanges" if len(ranks) == 1 else "exchange"
    return f"{rank_words(ranks)} {exchange} {more:.1f} times the bytes of the other ranks' experts"
