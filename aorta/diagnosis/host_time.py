"""Time that the GPU loses to the host: inside windows of compute, outside of them, and behind waits."""

from __future__ import annotations

from aorta.averages import fmean
from aorta.diagnosis.observation import Observation
from aorta.metrics.launches import Launches
from aorta.metrics.trace_capture import HostIdle

ALWAYS_EMPTY = 0.9
"""Launches never get ahead of the GPU if at least this share of them finds an empty queue."""
FEW_PAUSES = 1 / 3
"""If short gaps make up less than this share of the idle time, the GPU waits for long pauses of its host."""
MOST_OF_HOST = 0.5
"""A gap that takes at least this share of host work is one thing that can be removed."""
GAPS_INSIDE = "compute_holds_gaps"
"""Key of a finding's evidence: compute is known by windows alone, which hold the gaps between kernels."""

LESS_GARBAGE = (
    "collect garbage less often: gc.freeze() after start-up, then gc.disable() and gc.collect() every few "
    "hundred steps"
)


def launches(seen: Observation) -> Launches | None:
    """Returns the steps recorded kernel by kernel, where no traces tell more."""
    return seen.host.launches if seen.host.idle is None else None


def driver_busy_pct(seen: Observation) -> float | None:
    """Returns the driver's counter, where windows on a GPU are all that is known of its work."""
    if not seen.job.cuda or seen.host.idle is not None or seen.host.launches is not None:
        return None
    return seen.host.driver_busy_pct if seen.steps.costs else None


def windows_alone(seen: Observation) -> bool:
    """Returns True if a GPU's work is known by windows from event to event and by nothing else."""
    known = seen.host.idle is not None or launches(seen) is not None or driver_busy_pct(seen) is not None
    return seen.job.cuda and not known


def window_evidence(seen: Observation) -> dict[str, bool]:
    """Returns the evidence that compute may hold time of the host. Empty if it does not."""
    return {GAPS_INSIDE: True} if windows_alone(seen) and not seen.steps.traced else {}


def idle_inside_ms(seen: Observation) -> float:
    """Returns the GPU's idle time inside of compute's windows.

    The value comes from steps recorded kernel by kernel. Otherwise it is the time in which no kernel ran at
    all, minus all idle time outside of the windows. It is 0 if unknown, and for traces, which count this
    time as host work.
    """
    recorded, busy = launches(seen), driver_busy_pct(seen)
    if recorded is not None:
        return recorded.idle_ms
    if busy is None:
        return 0.0
    outside = fmean(
        item.host_ms + item.data_wait_ms + item.exposed_comm_ms + item.copy_ms for item in seen.steps.costs
    )
    return max(seen.steps.step_ms * (1.0 - busy / 100.0) - outside, 0.0)


def idle_inside_share(seen: Observation) -> float:
    """Returns the same as a share of compute's windows, 0 to 1."""
    recorded = launches(seen)
    windows = recorded.windows_ms if recorded else fmean(item.compute_ms for item in seen.steps.costs)
    return min(idle_inside_ms(seen) / windows, 1.0) if windows else 0.0


def host_ms(seen: Observation) -> float:
    """Returns the time per mean step in which the device waits for host work. It includes time inside and
    outside of windows, and waits for other ranks that would remain because of the rank's own host work.
    """
    return fmean(item.host_ms + item.own_host_wait_ms for item in seen.steps.costs) + idle_inside_ms(seen)


def launch_bound(seen: Observation) -> bool:
    """Returns True if the GPU idles for launches: by traces, or with most of the host's part inside of
    compute's windows.
    """
    recorded, idle = launches(seen), seen.host.idle
    if recorded is not None:
        return recorded.idle_ms > MOST_OF_HOST * host_ms(seen)
    return idle is not None and idles_for_launches(idle)


def idles_for_launches(idle: HostIdle) -> bool:
    """Returns True if most of the idle time is in short gaps. Also returns True if almost every launch finds
    an idle GPU, nothing synchronises them, and the GPU does not wait for a few long pauses.
    """
    if idle.short_gaps_ms > idle.long_gaps_ms:
        return True
    return (
        idle.empty_share is not None
        and idle.empty_share >= ALWAYS_EMPTY
        and not idle.synchronised
        and idle.short_gaps_ms > FEW_PAUSES * idle.gaps_ms
    )


def host_share(seen: Observation) -> float | None:
    """Returns the share of the host's part (0 to 1) that is one removable thing. None if not known."""
    idle, gap = seen.host.idle, seen.host.gap
    if idle is not None:
        return idle.short_gaps_ms / idle.gaps_ms if launch_bound(seen) else None
    return gap.share if gap is not None and gap.share >= MOST_OF_HOST else None


def waits_of_own_hosts(seen: Observation) -> dict[str, float]:
    """Returns what of ranks' waits for others their own hosts take anyway, as evidence; nothing where that is
    not known or none.
    """
    own = fmean(item.own_host_wait_ms for item in seen.steps.costs)
    return {"waits_that_own_hosts_take_anyway_ms": own} if own else {}
