"""Units: integer nanoseconds inside, suffixed floats at the edges."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
BYTES_PER_MIB = 1 << 20
BYTES_PER_GIB = 1 << 30


def ns_to_ms(ns: int) -> float:
    """Milliseconds with every nanosecond kept: six decimals are exact below 2**53 ns (104 days)."""
    return round(ns / NS_PER_MS, 6)


def ms_to_ns(ms: float) -> int:
    """The integer nanoseconds that `ns_to_ms` was given."""
    return round(ms * NS_PER_MS)


def plural(count: int, noun: str, several: str | None = None) -> str:
    """A count with its noun: `1 rank`, `2 ranks`; `several` is the plural of a noun that takes no plain s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def rank_list(ranks: list[int], limit: int = 8) -> str:
    """Returns `rank 1`, or `ranks 0, 1 and 3`, for the subject of a sentence; `all ranks` for none."""
    if 1 < len(ranks) <= limit:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return rank_words(ranks, limit)


def rank_words(ranks: list[int], limit: int = 8) -> str:
    """`all ranks`, `rank 1` or `ranks 1, 3`."""
    if not ranks:
        return "all ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:limit])
    return f"ranks {shown}" + (f" and {len(ranks) - limit} more" if len(ranks) > limit else "")
