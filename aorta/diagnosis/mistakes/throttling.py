"""A GPU limited by heat or power.

What it finds:
    For some GPUs, the driver reports a heat or power limit in most samples; for the other GPUs, in hardly
    any. The limited ranks compute for longer at a lower clock.
Why it costs time:
    The limited GPU runs at a lower clock, and all ranks wait for it.
What to do:
    Check cooling and the power limit of this node (`nvidia-smi -q -d PERFORMANCE`), and exclude the node
    from the job.
"""

from __future__ import annotations

from aorta.artefacts.weight import Estimate
from aorta.averages import median
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign
from aorta.diagnosis.observation import Observation

_LIMITED, _FREE = 0.5, 0.1
"""Shares of the samples with a limit, of a GPU that is limited and of one that is not."""


def _observe(seen: Observation) -> ObservedSign | None:
    limits = {rank: max(item.thermal, item.power) for rank, item in seen.around.throttling.items()}
    limited = [rank for rank, share in limits.items() if share >= _LIMITED]
    free = [rank for rank, share in limits.items() if share <= _FREE]
    compute = {row.rank: row.compute_ms for row in seen.steps.breakdown.per_rank}
    if not limited or not free or not set(limited) | set(free) <= set(compute):
        return None
    clocks = {rank: seen.around.throttling[rank].clock_mhz for rank in (*limited, *free)}
    slow = [clock for rank, clock in clocks.items() if rank in limited and clock]
    usual_clock = [clock for rank, clock in clocks.items() if rank in free and clock]
    if not slow or not usual_clock:
        return None
    usual = median(compute[rank] for rank in free)
    # A rank with more work reaches its power limit, too: the clock alone is the limit's.
    by_clock = usual * (median(usual_clock) / min(slow) - 1.0)
    longer = min(max(compute[rank] for rank in limited) - usual, by_clock)
    step = seen.steps.step_ms
    if longer <= 0 or longer >= step:
        return None
    value = step / (step - longer)
    return ObservedSign(
        # Where the longer kernels hide behind something else, nothing is gained.
        Estimate(value=value, low=1.0, high=value),
        ranks=limited,
        evidence={
            "limited_share_of_samples": {str(rank): round(share, 2) for rank, share in limits.items()},
            "clock_mhz": {str(rank): clock for rank, clock in sorted(clocks.items())},
            "compute_ms_per_step": {str(rank): round(compute[rank], 2) for rank in sorted([*limited, *free])},
        },
    )


SPEC = MistakeSpec(
    id="throttling",
    before="""\
sbatch --nodes=4 train.sbatch
""",
    after="""\
sbatch --nodes=4 --exclude=node7 train.sbatch
""",
    predicted_by="the step without the compute time that the lower clock explains",
    captures=(),
    look=None,
    observe=_observe,
    shown_by="clock limits in the monitors' samples, and compute times of the ranks",
    least_gain=1.05,
)
