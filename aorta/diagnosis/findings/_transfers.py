"""Why transfers take long: small calls, a slow group or transport, no overlap, or the link's rate."""

from __future__ import annotations

from aorta.averages import fmean, median
from aorta.diagnosis.finding import MOST, NOT_DETERMINED, SubCause, unknown
from aorta.diagnosis.observation import Observation
from aorta.metrics.trace_tops import bus_bandwidth
from aorta.metrics.whatif import CollectiveSlot
from aorta.units import NS_PER_MS, plural

SMALL_BYTES = 256 * 1024
"""A collective of fewer bytes than this is limited by latency more than by bandwidth."""
SLOW_GROUP = 2.0
"""A process group is on a slow link if another group transfers at least this many times its bytes per
second.
"""
STEADY_LINK = 1.5
"""Mean transfer time ÷ shortest transfer time. Below this ratio, the calls run at the best rate of the link.
"""
POOR_OVERLAP = 0.2
"""Poor overlap is the cause if compute overlaps less than this share of the transfers."""
LARGE_BYTES = 1 << 20
"""A collective of at least this many bytes is limited by the bandwidth of its link."""
SOCKET_GB_PER_S = 5.0
"""Sockets of 10 to 40 Gbit/s reach less than this. PCIe 3.0 with 16 lanes, the slowest link for GPUs,
reaches 12.
"""
PCIE_GB_PER_S = 12.0
"""Lowest bus bandwidth between GPUs of one node whose transport works: PCIe 3.0 with 16 lanes."""
NVLINK_GB_PER_S = 900.0
"""Highest bus bandwidth of any link (NVLink 5). No transport makes a transfer faster than this."""


def behind_transfers(seen: Observation) -> SubCause:
    """Returns the cause behind exposed transfers."""
    # What calls take is measured, also where the replay may predict nothing from it.
    replays = seen.model.replays if seen.model else None
    places = replays.places() if replays else []
    total = sum(place.transfer_ms for place in places)
    sized = [place for place in places if place.bytes]
    if not total or sum(place.transfer_ms for place in sized) < MOST * total:
        lacking = "the sizes of the collectives are not recorded"
        if seen.steps.blame_absent is not None:
            lacking = f"transfer cannot be told from waiting: {seen.steps.blame_absent}"
        return _overlap(seen) or unknown(lacking)
    found = mostly_small(sized, total) or _slow_group(sized, total) or _slow_transport(sized, seen)
    return found or _overlap(seen) or _bandwidth(sized)


def mostly_small(places: list[CollectiveSlot], total: float) -> SubCause | None:
    """Returns that most transfer goes to small collectives, of `total` ms; None where it does not."""
    small = [place for place in places if (place.bytes or 0) < SMALL_BYTES]
    taken = sum(place.transfer_ms for place in small)
    if taken < MOST * total:
        return None
    size = median(place.bytes or 0 for place in small)
    text = (
        f"{taken:.1f} of {total:.1f} ms of transfer per step are spent in {plural(len(small), 'collective')} "
        f"of {size / 1024:.0f} KiB: latency, not bandwidth"
    )
    return SubCause("latency_bound", text, {"small_collectives": len(small), "small_transfer_ms": taken})


def _slow_group(places: list[CollectiveSlot], total: float) -> SubCause | None:
    """Returns a group that carries far fewer bytes per second than another one of collectives as large."""
    rates = {
        group: _rate([place for place in places if place.group == group])
        for group in {place.group for place in places}
    }
    if len(rates) < 2:
        return None
    slow, fast = min(rates, key=lambda name: rates[name]), max(rates, key=lambda name: rates[name])
    taken = sum(place.transfer_ms for place in places if place.group == slow)
    if rates[slow] * SLOW_GROUP > rates[fast] or taken < MOST * total:
        return None
    text = (
        f"group {slow} carries {rates[slow]:.2f} GB/s, group {fast} {rates[fast]:.2f} GB/s: group {slow} has "
        "a slow link"
    )
    return SubCause(
        "slow_link", text, {"slow_group_gb_per_s": rates[slow], "fast_group_gb_per_s": rates[fast]}
    )


def _slow_transport(places: list[CollectiveSlot], seen: Observation) -> SubCause | None:
    """Returns large exchanges between GPUs at a rate that no link made for GPUs is as slow as."""
    taken = sum(place.transfer_ms for place in places)
    large = [place for place in places if (place.bytes or 0) >= LARGE_BYTES]
    if not seen.steps.traced or sum(place.transfer_ms for place in large) < MOST * taken:
        return None
    size, ranks = sum(place.bytes or 0 for place in large) / len(large), seen.job.world_size
    rates = [
        (place.transfer_ms, bus_bandwidth(place.op, place.bytes or 0, ranks, place.transfer_ms * NS_PER_MS))
        for place in large
    ]
    known = [(ms, rate) for ms, rate in rates if rate is not None]
    rate = sum(ms * rate for ms, rate in known) / sum(ms for ms, _ in known) if known else _rate(large)
    if rate >= SOCKET_GB_PER_S:
        return None
    text = (
        f"collectives of {size / 1e6:.1f} MB per call run at {rate:.2f} GB/s of bus bandwidth, as sockets "
        "do: PCIe, NVLink and InfiniBand reach more than 10 GB/s"
    )
    return SubCause("slow_transport", text, {"bus_gb_per_s": rate, "mean_bytes": size})


def _rate(places: list[CollectiveSlot]) -> float:
    """Returns GB/s of a member's bytes over its transfer."""
    taken = sum(place.transfer_ms for place in places)
    return sum(place.bytes or 0 for place in places) / 1e6 / taken if taken else float("inf")


def _overlap(seen: Observation) -> SubCause | None:
    """Returns communication that compute could hide and does not; None too where it may be waiting."""
    if seen.steps.blame_absent is not None and seen.job.world_size > 1:
        return None
    rows = seen.steps.breakdown.per_rank
    comm, exposed = (
        fmean(values) for values in zip(*((row.comm_ms, row.exposed_comm_ms) for row in rows), strict=True)
    )
    waits = fmean(item.exposed_comm_ms - item.transfer_ms for item in seen.steps.costs)
    hidden, transfer = comm - exposed, comm - waits
    if transfer <= 0.0 or hidden / transfer >= POOR_OVERLAP:
        return None
    compute = fmean(row.compute_ms for row in rows)
    if compute < transfer:
        return None
    text = (
        f"only {hidden:.1f} of {transfer:.1f} ms of transfer overlap with compute, although compute takes "
        f"{compute:.1f} ms"
    )
    return SubCause("poor_overlap", text, {"hidden_transfer_ms": hidden, "transfer_ms": transfer})


def _bandwidth(places: list[CollectiveSlot]) -> SubCause:
    mean, best = sum(p.transfer_ms for p in places), sum(p.fastest_ms for p in places)
    rate = _rate(places)
    evidence = {"gb_per_s": rate, "mean_over_fastest": mean / best if best else None}
    if best and mean / best < STEADY_LINK:
        text = (
            f"the collectives carry {rate:.2f} GB/s per rank and take {mean / best:.2f} times what their "
            "fastest calls do: bandwidth"
        )
        return SubCause("bandwidth_bound", text, evidence)
    return SubCause(
        NOT_DETERMINED,
        f"collectives carry {rate:.2f} GB/s per rank, and sometimes more; what slows them down was not "
        "measured",
        evidence,
    )
