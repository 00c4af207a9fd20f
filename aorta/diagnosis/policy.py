"""The numbers that the rules decide by."""

from __future__ import annotations

from dataclasses import dataclass

from aorta.config.schema import Config, Thresholds

MIN_STEADY_STEPS = 10


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds of the configuration, and what the rules need besides."""

    effective_gpu_utilization_pct: float
    """Below it, a GPU is under-used."""
    data_wait_pct: float
    """Share of the step that goes to loading."""
    exposed_comm_pct: float
    """Share of the step in communication that nothing hides, and in waiting for a slower rank."""
    memory_used_pct: float
    min_steady_steps: int = MIN_STEADY_STEPS
    """Fewer say nothing."""
    culprit_share: float = 0.5
    """A rank is named with a cause if it has this share of the worst rank's."""
    cross_check_tolerance: float = 0.2
    """How far throughput and batch / latency, or mean and median step, may differ before a note says so."""

    @classmethod
    def of(cls, config: Config | None) -> Policy:
        """The policy of a run's configuration, the defaults where it has none."""
        chosen = config.thresholds if config is not None else Thresholds()
        return cls(
            effective_gpu_utilization_pct=chosen.effective_gpu_utilization_pct,
            data_wait_pct=chosen.data_wait_pct,
            exposed_comm_pct=chosen.exposed_comm_pct,
            memory_used_pct=chosen.memory_used_pct,
        )

    def as_dict(self) -> dict[str, float]:
        """What the analysis prints beside its values."""
        return {
            "effective_gpu_utilization_pct": self.effective_gpu_utilization_pct,
            "data_wait_pct": self.data_wait_pct,
            "exposed_comm_pct": self.exposed_comm_pct,
            "memory_used_pct": self.memory_used_pct,
            "min_steady_steps": float(self.min_steady_steps),
        }
