"""The numbers that the rules decide by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aorta.config.schema import Config, Thresholds

CROSS_CHECK_TOLERANCE = 0.2
"""How far throughput and batch / latency, or mean and median step, may differ before a note says so."""
MIN_STEADY_STEPS = 10
MIN_TRACED_STEPS = 3
"""Of kernel traces: exact to the ns and without a profiler's start-up; captures are short."""
TRACED_STRAGGLER_PCT = 10.0
"""Waits in kernel traces hold no scheduling noise of the host: a smaller share is sure."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds of the configuration, and what the rules need besides."""

    effective_gpu_utilization_pct: float
    """Below it, a GPU is under-used."""
    data_wait_pct: float
    """Share of the step that goes to loading."""
    exposed_comm_pct: float
    """Share of the step in communication that nothing hides."""
    memory_used_pct: float
    straggler_pct: float
    """Share of the step in waiting for other ranks' compute and host work."""
    host_pct: float
    """Share of the step in which the GPU is idle for the host alone."""
    exchange_pct: float
    """Share of the step in exchange alone, waits aside, at or below which communication is no cause."""
    alloc_retries_per_step: float
    """Failed allocations a step above which full memory is the cause of what the host loses."""
    swap_mb_per_s: float
    """What a node moves between memory and swap above which that is memory pressure."""
    min_steady_steps: int = MIN_STEADY_STEPS
    """Fewer say nothing."""
    culprit_share: float = 0.5
    """A rank is named with a cause if it has this share of the worst rank's."""
    cross_check_tolerance: float = CROSS_CHECK_TOLERANCE

    @classmethod
    def of(cls, config: Config | None) -> Policy:
        """The policy of a run's configuration, the defaults where it has none."""
        chosen = config.thresholds if config is not None else Thresholds()
        return cls(
            effective_gpu_utilization_pct=chosen.effective_gpu_utilization_pct,
            data_wait_pct=chosen.data_wait_pct,
            exposed_comm_pct=chosen.exposed_comm_pct,
            memory_used_pct=chosen.memory_used_pct,
            straggler_pct=chosen.exposed_comm_pct,
            host_pct=chosen.host_pct,
            exchange_pct=chosen.exposed_comm_pct if chosen.exchange_pct is None else chosen.exchange_pct,
            alloc_retries_per_step=chosen.alloc_retries_per_step,
            swap_mb_per_s=chosen.swap_mb_per_s,
        )

    def for_traces(self) -> Policy:
        """Returns the policy for kernel traces."""
        return replace(
            self,
            min_steady_steps=MIN_TRACED_STEPS,
            straggler_pct=min(self.straggler_pct, TRACED_STRAGGLER_PCT),
        )

    def as_dict(self) -> dict[str, float]:
        """What the analysis prints beside its values."""
        return {
            "effective_gpu_utilization_pct": self.effective_gpu_utilization_pct,
            "data_wait_pct": self.data_wait_pct,
            "exposed_comm_pct": self.exposed_comm_pct,
            "memory_used_pct": self.memory_used_pct,
            "straggler_pct": self.straggler_pct,
            "host_pct": self.host_pct,
            "exchange_pct": self.exchange_pct,
            "alloc_retries_per_step": self.alloc_retries_per_step,
            "swap_mb_per_s": self.swap_mb_per_s,
            "min_steady_steps": float(self.min_steady_steps),
        }
