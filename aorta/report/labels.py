"""Labels of the facts that findings give as evidence: each says what the figure is, per what, of which ranks.

Keys are those of `profiling_analysis.json`, which stay as they are.
"""

from __future__ import annotations

_MEAN = "per step (mean over ranks)"

LABELS: dict[str, tuple[str, str]] = {
    "step_ms": ("step time, mean over ranks", "ms"),
    "files": ("measured from", ""),
    # data loading
    "data_wait_ms_worst_rank": ("data wait per step, worst rank", "ms"),
    "data_wait_ms_median_rank": ("data wait per step, median rank", "ms"),
    "others_wait_ms": (f"waiting for another rank's loader, {_MEAN}", "ms"),
    "disk_read_mb_per_s": ("read from disks", "MB/s"),
    "cpu_busy_share": ("the job's CPUs in use", "share"),
    "cpus": ("CPUs that the job may use on the node", ""),
    "workers": ("loader workers per rank", ""),
    # communication
    "exposed_comm_ms": (f"exposed communication, {_MEAN}", "ms"),
    "transfer_and_late_exchanges_ms": (
        f"of which transferring data, and waiting that an earlier slow transfer causes, {_MEAN}",
        "ms",
    ),
    "waits_charged_to_ranks_ms": (f"of which waiting for a rank that arrives late, {_MEAN}", "ms"),
    "comm_ms": (f"total communication (exposed + overlapped), {_MEAN}", "ms"),
    "overlap_ratio": ("share of communication that is overlapped with compute", "share"),
    "waits": ("waiting is not split by rank, because", ""),
    "small_collectives": ("small collectives per step", ""),
    "small_transfer_ms": ("transfer time of these collectives per step", "ms"),
    "slow_group_gb_per_s": ("rate of the slow process group", "GB/s"),
    "fast_group_gb_per_s": ("rate of the fast process group", "GB/s"),
    "bus_gb_per_s": ("bus bandwidth of large collectives", "GB/s"),
    "mean_bytes": ("mean size of these collectives", "bytes"),
    "hidden_transfer_ms": ("transfers overlapped with compute, per step", "ms"),
    "transfer_ms": ("all transfers, per step", "ms"),
    "gb_per_s": ("rate of the collectives per rank", "GB/s"),
    "mean_over_fastest": ("mean transfer time ÷ transfer time of the fastest call", "×"),
    "group": ("process group", ""),
    "times": ("slower than the other process groups", "×"),
    # hosts and late ranks
    "host_ms": (f"device idle because of host work, {_MEAN}", "ms"),
    "waits_for_hosts_by_turns_ms": (
        f"waiting for the host work of ranks that are late in turn, {_MEAN}",
        "ms",
    ),
    "waits_that_own_hosts_take_anyway_ms": (
        f"waiting that would remain because the rank's own host work takes as long, {_MEAN}",
        "ms",
    ),
    "kernels_per_step": ("kernels per step", ""),
    "kernels": ("kernels per step", ""),
    "kernels_ms": ("time of these kernels per step", "ms"),
    "idle_in_compute_windows_ms": ("GPU idle in time recorded as compute, per step", "ms"),
    "idle_in_short_gaps_ms": ("GPU idle in short gaps between kernels, per step", "ms"),
    "idle_in_long_gaps_ms": ("GPU idle in long gaps between kernels, per step", "ms"),
    "idle_while_host_synchronises_ms": ("GPU idle while the host synchronises with it, per step", "ms"),
    "launches_per_step": ("kernel launches per step", ""),
    "launches_on_an_empty_queue_share": (
        "launches to an idle GPU that found its queue empty",
        "share",
    ),
    "largest_gap_ms": ("longest host work at one place, per step", "ms"),
    "largest_gap_share": ("its share of host work", "share"),
    "waits_for_compute_ms": ("waiting for another rank's compute, per step (mean over waiting ranks)", "ms"),
    "waits_for_host_ms": ("waiting for another rank's host work, per step (mean over waiting ranks)", "ms"),
    "ranks_late_by_host": ("ranks that are late because of host work", ""),
    "collector_ms": ("pauses of Python's garbage collector per step", "ms"),
    "collector_ms_others": ("the same on the other ranks", "ms"),
    "clock_loss": ("GPU clock below that of the other ranks", "share"),
    "thermal_share": ("samples in which the GPU was slowed down because of heat", "share"),
    "thermal_share_others": ("the same on the other ranks", "share"),
    "power_share": ("samples in which the GPU was slowed down because of power", "share"),
    "power_share_others": ("the same on the other ranks", "share"),
    "foreign_cpu_pct": ("CPU use of other programs on the node (100 % is one core)", "%"),
    "late_nodes": ("nodes whose ranks are all late", ""),
    "exchanged_times": ("bytes exchanged in all-to-all ÷ bytes of the other ranks", "×"),
    "computes_longer_ms": ("longer compute than on the other ranks, per step", "ms"),
    "compute_holds_gaps": ("time recorded as compute includes gaps between kernels", ""),
    # utilisation
    "effective_gpu_utilization_pct": ("share of the step in which a compute kernel runs", "%"),
    "driver_utilization_pct": ("GPU utilisation according to the driver, which counts waiting as busy", "%"),
    # memory
    "of": ("memory that is fullest", ""),
    "used_pct": ("its use", "%"),
    "accounting_upper_estimate_pct": ("peak use, according to Slurm's accounting", "%"),
    "allocator_reserved_pct": ("GPU memory reserved by the allocator", "%"),
    "allocator_peak_pct": ("peak of the program's tensors", "%"),
    "driver_pct": ("in use according to the driver", "%"),
    "alloc_retries_per_step": ("failed allocations that were retried, per step", ""),
    "fragmentation": ("reserved GPU memory that does not belong to tensors", "share"),
    "GPU memory, by the monitor": ("GPU memory in use, according to the monitor", "%"),
    "GPU memory, by the allocator": ("GPU memory in tensors, according to the allocator", "%"),
    "the job's memory limit on a node": ("memory of the job, share of its limit on a node", "%"),
    "a node's memory, by all of its programs": ("memory of a node, used by all programs", "%"),
    "swap_in_mb_per_s": ("read back from swap", "MB/s"),
    "swap_out_mb_per_s": ("written to swap", "MB/s"),
    "swap_used_bytes": ("swap in use on the node", "bytes"),
    "job_swap_bytes": ("swap in use by the job", "bytes"),
    "memory_stall_share": ("time in which processes waited for memory", "share"),
    "limit_hits": ("times that the job hit its memory limit", ""),
    # steps, pipelines
    "between_steps_ms": ("time between steps, per step", "ms"),
    "phases_ms": ("time between steps by what came before, per step", "ms"),
    "step": ("step", ""),
    "between_steps": ("the gap is before this step, not inside it", ""),
    "seconds": ("lost in total", "s"),
    "stalls": ("number of stalls", ""),
    "process_state": ("state of the process during the stall", ""),
    "stages": ("pipeline stages", ""),
    "microbatches": ("microbatches per step", ""),
    "schedule": ("pipeline schedule", ""),
    "bubble_measured": ("pipeline bubble, measured, share of the step", "share"),
    "bubble_ideal": ("pipeline bubble of the ideal schedule, share of the step", "share"),
    "mesh_cause": ("cause", ""),
    "excess": ("excess over the others, or spread over microbatches", "share"),
    "slowdown": ("step time ÷ step time with equally fast workers (S)", "×"),
    "m_worker": ("share of the slowdown that the slowest workers explain (M)", "share"),
    "m_last_stage": ("share of the slowdown that the last stage explains (M)", "share"),
    "mistake": ("known mistake", ""),
}
"""Label and unit by key. `share` is a ratio that is shown in percent; an empty unit shows the bare value."""
TWO_RANKS: dict[str, tuple[str, str]] = {
    "data_wait_ms_worst_rank": ("data wait per step, slower rank", "ms"),
    "data_wait_ms_median_rank": ("data wait per step, other rank", "ms"),
}
"""Labels in a job of two ranks, where the median rank is the other one."""
SPLIT_BY_PARTS = ("transfer_and_late_exchanges_ms", "waits_charged_to_ranks_ms")
"""Facts that the parts of the step tell with more detail, under the names of the charts."""
