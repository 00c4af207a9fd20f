"""Measurements of a run: where the step goes, rank by rank, and its rates."""

from __future__ import annotations

from aorta.artefacts.records import Record


class Interval(Record, frozen=True, kw_only=True):
    """Tells where a quantity lies."""

    low: float
    high: float
    confidence: float | None = 0.95
    """Confidence level; None: `low` and `high` are the least and the most that two runs gave."""


class RankBreakdown(Record, frozen=True, kw_only=True):
    """Means over the detailed steady steps of one rank, in ms per step; the five parts sum to step_ms."""

    rank: int
    host: str | None
    steps: int
    step_ms: float
    compute_ms: float
    exposed_comm_ms: float
    exposed_copy_ms: float | None
    data_wait_ms: float
    host_ms: float
    comm_ms: float
    overlap_ratio: float | None
    wait_ms: float | None = None
    transfer_ms: float | None = None
    unclassified_ms: float | None = None
    """From traces: GPU time of events that nothing names; a sixth part of the sum."""
    unseen_ms: float | None = None
    """Time in which a trace does not show what the GPU did, or in which hooks saw no forward or backward pass
    though there was one; a seventh part of the sum."""
    host_work_ms: float | None = None
    """From traces: how long the host neither waited for its GPU nor for its loader. It runs beside the GPU
    and is no part of the sum."""
    own_host_wait_ms: float | None = None
    """Part of the waits for other ranks' compute and host that would remain, because this rank's own host is
    as slow. None if not known."""


class BreakdownTable(Record, frozen=True, kw_only=True):
    """The breakdown of a scenario."""

    steps: int
    per_rank: list[RankBreakdown]
    timing: str | None = None


class Blame(Record, frozen=True, kw_only=True):
    """Time of other ranks that one rank's cause costs."""

    rank: int
    cause: str
    lost_ms_per_step: float


class Throughput(Record, frozen=True, kw_only=True):
    """Global samples per second over the steady window, by each rank's own clock."""

    samples_per_s: float
    global_batch: int
    per_rank_batch: int
    step_ms_median: float
    step_ms_p95: float
    cross_check_ratio: float | None
    """samples/s over global batch / median step time: 1 when the record agrees with itself."""
    step_ms_mean: float | None = None
    """The mean over steps; above the median where some steps are far slower than the rest."""
    slowest_rank_ms_median: float | None = None
    """Step time of the slowest rank of each step; `step_ms_*` are of the mean over ranks."""
    slowest_rank_ms_p95: float | None = None
    samples_per_s_interval: Interval | None = None
    """Interval from resampling blocks of consecutive steps; None with too few steps."""
    step_ms_interval: Interval | None = None
    """Interval of the mean step, from the same resampling."""


class Utilization(Record, frozen=True, kw_only=True):
    """Monitor samples inside the steady window; None where not measured."""

    gpu_util_pct: float | None
    """The driver's counter: says busy while a kernel waits."""
    effective_gpu_util_pct: float | None
    gpu_memory_used_pct: float | None
    gpu_power_w: float | None
    cpu_pct: float | None
    job_cpu_pct: float | None
    host_memory_used_pct: float | None
    samples: int
    job_memory_used_pct: float | None = None
    """Peak of the job's cgroup over its limit; None without a limit."""
    energy_per_sample_j: float | None = None
    """Energy of all GPUs of the job per training sample, J: the sum of their mean powers over samples/s."""
    sm_active_pct: float | None = None
    """Share of the multiprocessors that were busy, by NVML's performance monitoring."""
    tensor_active_pct: float | None = None
    """Share of the tensor cores' peak."""
    dram_active_pct: float | None = None
    """Share of the memory bandwidth in use."""
    node_cores: float | None = None
    """CPU cores of a node, mean over nodes: `cpu_pct` is a share of them. None where it is not recorded."""


class DetailCost(Record, frozen=True, kw_only=True):
    """Says what timing part by part costs.

    Steady steps timed so against those timed as a whole beside them.
    """

    ratio: float | None
    """`detailed_ms` over `whole_ms`; None: `reason` says why."""
    ratio_interval: Interval | None
    """Interval from resampling blocks of consecutive steps; None with fewer than 10 on either side."""
    detailed_steps: int
    whole_steps: int
    """On either side of each block of detailed ones, as many as the block has, where there are as many."""
    detailed_ms: float | None = None
    """Median; each step by its slowest rank."""
    whole_ms: float | None = None
    detailed_mean_ms: float | None = None
    whole_mean_ms: float | None = None
    """Mean of all steps timed as a whole. It is above `detailed_mean_ms` where the slow part happens in steps
    whose parts were not timed."""
    reason: str | None = None
