"""What a synthetic run looks like."""

from __future__ import annotations

from dataclasses import dataclass, field

from aorta.config.schema import CaptureConfig, Config, TrainingConfig
from aorta.units import NS_PER_S

START_WALL_NS = 1_750_000_000 * NS_PER_S
START_MONO_NS = 1_000 * NS_PER_S


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What the simulated run looks like; times in ms of one step."""

    nodes: int = 1
    ranks_per_node: int = 2
    steps: int = 40
    warmup: int = 10
    scenario: str | None = None
    """Default: `<nodes>node`."""
    job_id: str = "101"
    device: str = "cpu"
    batch_size: int = 8
    compute_ms: float = 60.0
    hidden_comm_ms: float = 8.0
    """Transfer of bucket 0, which runs under the second part of backward (0.2 of compute)."""
    exposed_comm_ms: float = 6.0
    """Transfer of bucket 1, which nothing hides. 0 for both: no collectives at all."""
    data_wait_ms: float = 4.0
    host_ms: float = 5.0
    extra_data_ms: dict[int, float] = field(default_factory=dict)
    """Slow loaders: rank to additional ms."""
    extra_compute_ms: dict[int, float] = field(default_factory=dict)
    """Stragglers: rank to additional ms."""
    extra_host_ms: dict[int, float] = field(default_factory=dict)
    detail: tuple[int, int] | None = None
    """After the warm-up, the first so many of each so many steps are timed part by part, the others as a
    whole, as the warm-up is. None: all are timed part by part.
    """
    detail_ms: float = 0.0
    """Additional host time of a step that is timed part by part."""
    jitter_ms: float = 0.0
    """Uniform noise on each rank's compute, from `seed`."""
    seed: int = 7
    clock_offset_ns: dict[int, int] = field(default_factory=dict)
    """Node to what its clocks are ahead by."""
    separate_hosts: bool = True
    executor: str = "slurm"
    startup_s: float = 3.0
    """Time before the first step, sampled by the monitors."""
    tail_s: float = 2.0
    monitor_interval_s: float = 0.5
    gpu_util_pct: float | None = 97.0
    gpu_memory_used_mb: float | None = 30_000.0
    gpu_memory_total_mb: float | None = 81_920.0
    gpu_power_w: tuple[float, float, float] | None = (120.0, 720.0, 300.0)
    """Before, during and after the steps."""
    job_memory_used_bytes: int | None = 6 << 30
    job_memory_limit_bytes: int | None = 24 << 30
    swap_mb_per_s: dict[int, tuple[float, float]] | None = None
    """Node to what it reads from swap and writes to it, all others nothing; None: not sampled."""
    job_swap_used_bytes: int | None = None
    memory_stall_share: dict[int, float] | None = None
    """Node to the share of time in which a process waits for memory, likewise."""
    state: str = "completed"
    config: Config | None = None

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.scenario or f"{self.nodes}node"

    def is_detailed(self, step: int) -> bool:
        """Whether a step is timed part by part."""
        if self.detail is None:
            return True
        count, of = self.detail
        return step >= self.warmup and (step - self.warmup) % of < count

    def host(self, node: int) -> str:
        """Host name of a node."""
        return f"node{node + 1}" if self.separate_hosts else "localhost"

    def resolved_config(self) -> Config:
        """The configuration that is written beside the run."""
        return self.config or Config(
            training=TrainingConfig(batch_size=self.batch_size),
            capture=CaptureConfig(warmup_steps=self.warmup),
        )
