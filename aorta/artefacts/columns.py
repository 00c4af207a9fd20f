"""The columns of the monitors' files: one row per column. Writers, readers and checks follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from aorta.artefacts.samples import GpuSample

_FULL = 100.0
_MOST_WATTS = 10_000.0
_MOST_MHZ = 20_000.0
_MOST_MIB = float(16 << 20)
_COLDEST, _HOTTEST = -100.0, 250.0
"""No GPU reports more, or a temperature outside: drivers that fail say 4294967295 and the like."""
Form = Literal["text", "exact", "number"]
Value = TypeVar("Value")


class Column(Struct, frozen=True):
    """One column of a monitor file.

    `exact` columns are whole numbers that every row has; a float would round those above 2**53.
    Numbers may be absent: an empty cell was not measured.
    """

    name: str
    about: str
    """One sentence with the unit."""
    form: Form = "number"
    low: float | None = 0.0
    """Smallest value that can be measured. None if there is none."""
    high: float | None = None
    part_of: str | None = None
    """Column that holds the whole of which this column is a part."""
    field: str | None = None
    """Field of `artefacts.samples.GpuSample` that holds the value, where it comes from one."""


_WHERE = (
    Column("hostname", "The node's host name.", "text"),
    Column("node_index", "Index of the node within the job.", "exact"),
    Column("wall_ns", "Wall-clock time of the sample, ns since the epoch.", "exact"),
    Column("mono_ns", "Monotonic time of the sample on its node, ns.", "exact"),
)
_WHEN = Column("timestamp", "Time of the sample, ISO 8601 with offset.", "text")

GPU = (
    _WHEN,
    Column("gpu_id", "Index of the GPU within the job.", field="index"),
    Column(
        "utilization_gpu", "Share of time in which a kernel runs, %.", high=_FULL, field="utilization_gpu"
    ),
    Column(
        "utilization_memory",
        "Share of time in which the memory bus is busy, %; this is not the share of memory in use.",
        high=_FULL,
        field="utilization_memory",
    ),
    Column("memory_used_mb", "GPU memory in use, MiB.", part_of="memory_total_mb", field="memory_used_mb"),
    Column("memory_total_mb", "Total GPU memory, MiB.", low=1.0, high=_MOST_MIB, field="memory_total_mb"),
    Column("temperature", "GPU temperature, °C.", low=_COLDEST, high=_HOTTEST, field="temperature"),
    Column("power_draw_w", "Power, W.", high=_MOST_WATTS, field="power_draw_w"),
    *_WHERE,
    Column("gpu_uuid", "The GPU's UUID.", "text", field="uuid"),
    Column("gpu_name", "The GPU's model.", "text", field="name"),
    Column("sm_clock_mhz", "Clock of the multiprocessors, MHz.", high=_MOST_MHZ, field="sm_clock_mhz"),
    Column("energy_mj", "Energy used since the driver was loaded, mJ.", field="energy_mj"),
    Column(
        "clock_event_reasons", "Bit mask of NVML's reasons for a lower clock.", field="clock_event_reasons"
    ),
    Column(
        "sm_active_pct",
        "Share of the multiprocessors that were busy, mean since the last sample, %.",
        high=_FULL,
        field="sm_active_pct",
    ),
    Column(
        "tensor_active_pct",
        "Share of the tensor cores' peak rate, mean since the last sample, %.",
        high=_FULL,
        field="tensor_active_pct",
    ),
    Column(
        "dram_active_pct",
        "Share of the memory bandwidth in use, mean since the last sample, %.",
        high=_FULL,
        field="dram_active_pct",
    ),
)
"""`gpu_monitor.csv`: one row per GPU and sample."""

CPU = (
    _WHEN,
    Column("cpu_percent", "Busy share of the node's CPUs since the last sample, %.", high=_FULL),
    Column("memory_percent", "Node memory in use, %.", high=_FULL),
    Column("memory_used_gb", "Node memory in use, GiB.", part_of="memory_total_gb"),
    Column("memory_total_gb", "Total node memory, GiB."),
    *_WHERE,
    Column("job_cpu_percent", "CPU time of the job since the last sample, % of one core."),
    Column("job_memory_used_bytes", "Memory of the job, excluding file pages that the kernel can drop."),
    Column(
        "job_memory_limit_bytes", "Smallest memory limit of the job's cgroup and of the cgroups above it."
    ),
    Column("cpus_usable", "CPUs that the job may use."),
    Column("disk_read_bytes", "Bytes read from physical disks since boot."),
    Column("disk_write_bytes", "Bytes written to physical disks since boot."),
    Column("net_sent_bytes", "Bytes sent since boot, excluding loopback, bridges and bonds."),
    Column("net_recv_bytes", "Bytes received since boot, excluding loopback, bridges and bonds."),
    Column("swap_used_bytes", "Swap in use on the node."),
    Column("swap_in_bytes", "Bytes read from swap since boot."),
    Column("swap_out_bytes", "Bytes written to swap since boot."),
    Column("job_swap_used_bytes", "Swap in use by the job."),
    Column(
        "job_memory_limit_hits", "Number of times that the kernel reclaimed pages because of the job's limit."
    ),
    Column(
        "memory_stall_ms",
        "Time in which a process of the job waited for memory, ms; if unknown, any process of the node.",
    ),
    Column("ib_sent_bytes", "Bytes sent by the ports of InfiniBand and RoCE adapters so far."),
    Column("ib_recv_bytes", "Bytes received by the ports of InfiniBand and RoCE adapters so far."),
)
"""`cpu_monitor.csv`: one row per sample."""

GPU_COLUMNS = tuple(column.name for column in GPU)
CPU_COLUMNS = tuple(column.name for column in CPU)
_BY_NAME = {column.name: column for column in (*GPU, *CPU)}
TEXT = frozenset(name for name, column in _BY_NAME.items() if column.form == "text")
EXACT = tuple(column.name for column in _WHERE if column.form == "exact")
"""Whole numbers that a row must have to be used."""
NUMBERS = {name: column for name, column in _BY_NAME.items() if column.form == "number"}
"""Measured columns of either file, by name."""


def cells(columns: Sequence[Column], values: Mapping[str, Value]) -> list[Value]:
    """The values in the order of `columns`.

    Raises:
        KeyError: a column has no value, or a value has no column.
    """
    if len(values) != len(columns):
        raise KeyError(f"values for {sorted(set(values) ^ {column.name for column in columns})} do not match")
    return [values[column.name] for column in columns]


def sampled(columns: Iterable[Column], sample: GpuSample) -> dict[str, str | float | None]:
    """The values of `columns` that are fields of `sample`, by column name."""
    return {column.name: getattr(sample, column.field) for column in columns if column.field is not None}
