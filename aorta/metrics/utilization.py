"""Monitor samples inside the steady window, weighted by the time that each stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.measured import RankBreakdown, Utilization
from aorta.artefacts.sample_table import SampleTable
from aorta.metrics.rows import rows_of
from aorta.metrics.steady import Steady

if TYPE_CHECKING:
    import pandas as pd


Window = tuple[int, int]
"""[start, end) in wall-clock ns."""


class Numbers:
    """The columns of a table of samples as numbers, each converted once."""

    def __init__(self, table: pd.DataFrame | SampleTable) -> None:
        """Wrap `table`, as it is."""
        self._table = table
        self._known: dict[str, NDArray[np.float64]] = {}

    def column(self, name: str) -> NDArray[np.float64]:
        """The column, NaN where it holds no number or there is no such column, (rows,)."""
        if isinstance(self._table, SampleTable):
            return self._table.column(name)
        import pandas as pd

        if name not in self._known:
            values = self._table[name] if name in self._table else pd.Series(np.nan, self._table.index)
            self._known[name] = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
        return self._known[name]


class SampleSeries(Struct, frozen=True, eq=False):
    """One sampled thing on one node: rows in time order, inside the window."""

    host: str
    wall_ns: NDArray[np.int64]
    window: Window
    rows: NDArray[np.intp]
    """Place where they are in the table."""
    table: pd.DataFrame | SampleTable
    all_numbers: Numbers

    def numbers(self, column: str) -> NDArray[np.float64]:
        """The column's values, NaN where not measured, (rows,)."""
        found: NDArray[np.float64] = self.all_numbers.column(column)[self.rows]
        return found

    def first_text(self, column: str) -> object:
        """Value in the first row."""
        return _text(self.table, column, int(self.rows[0]))


class Sampled(Struct, frozen=True, eq=False):
    """The samples inside the windows of their hosts."""

    gpus: list[SampleSeries]
    """Samples of each GPU."""
    hosts: list[SampleSeries]
    """Samples of each node."""


def steady_windows(steady: Steady) -> dict[str, Window]:
    """Returns each host's steady window on its wall clock, from its ranks' first start to their last end."""
    windows: dict[str, Window] = {}
    for steps in steady.by_rank.values():
        if len(steps):
            host, first = steps.labels[0].host, int(steps.column("wall_start_ns")[0])
            last = int(steps.column("wall_end_ns")[-1])
            start, end = windows.get(host, (first, last))
            windows[host] = min(start, first), max(end, last)
    return windows


def sampled(
    windows: Mapping[str, Window],
    gpu: pd.DataFrame | SampleTable | None,
    cpu: pd.DataFrame | SampleTable | None,
) -> Sampled:
    """Monitor files taken apart once for all that is made of them.

    Args:
        windows: the steady window of each host, on that host's wall clock.
        gpu: GPU_COLUMNS, NaN where not measured; None without a GPU file.
        cpu: CPU_COLUMNS, likewise.
    """
    return Sampled(
        gpus=in_windows(gpu, ["hostname", "node_index", "gpu_uuid", "gpu_id"], windows),
        hosts=in_windows(cpu, ["hostname", "node_index"], windows),
    )


def utilization(
    seen: Sampled, effective_pct: float | None, samples_per_s: float | None = None
) -> Utilization:
    """Means (memory: peaks) over the samples of each host's steady window.

    Args:
        seen: the samples inside the windows.
        effective_pct: effective GPU utilisation by the step records; None where there is no GPU.
        samples_per_s: of all ranks; None where it is not measured.

    A mean is taken per GPU (per node for the CPU) and then over them, each sample weighing the time to its
    neighbours. A column without any number in the window is None, never 0.
    """
    gpus, hosts = seen.gpus, seen.hosts
    return Utilization(
        gpu_util_pct=mean_of(gpus, "utilization_gpu"),
        effective_gpu_util_pct=effective_pct,
        gpu_memory_used_pct=_peak_share(gpus, "memory_used_mb", "memory_total_mb"),
        gpu_power_w=mean_of(gpus, "power_draw_w"),
        cpu_pct=mean_of(hosts, "cpu_percent"),
        job_cpu_pct=mean_of(hosts, "job_cpu_percent"),
        host_memory_used_pct=_peak(hosts, "memory_percent"),
        samples=sum(len(item.rows) for item in (*gpus, *hosts)),
        job_memory_used_pct=_peak_share(hosts, "job_memory_used_bytes", "job_memory_limit_bytes"),
        energy_per_sample_j=_energy_per_sample(gpus, samples_per_s),
        sm_active_pct=mean_of(gpus, "sm_active_pct"),
        tensor_active_pct=mean_of(gpus, "tensor_active_pct"),
        dram_active_pct=mean_of(gpus, "dram_active_pct"),
    )


def _energy_per_sample(gpus: list[SampleSeries], samples_per_s: float | None) -> float | None:
    """J per sample: the sum of the GPUs' mean powers (W) over samples/s; None where a GPU has no power."""
    powers = [mean_of([gpu], "power_draw_w") for gpu in gpus]
    known = [power for power in powers if power is not None]
    if not samples_per_s or not known or len(known) < len(powers):
        return None
    return sum(known) / samples_per_s


def effective_gpu_utilization(rows: list[RankBreakdown]) -> float | None:
    """|U| / step in percent, summed over ranks: the share of rank time in which a compute kernel ran."""
    total = sum(row.step_ms for row in rows)
    return 100.0 * sum(row.compute_ms for row in rows) / total if total else None


def in_windows(
    table: pd.DataFrame | SampleTable | None, keys: list[str], windows: Mapping[str, Window]
) -> list[SampleSeries]:
    """The samples of each thing that `keys` name, in its host's window; things without any are left out."""
    if table is None or not len(table) or not windows:
        return []
    numbers = Numbers(table)
    if isinstance(table, SampleTable):
        wall, groups = table.wall_ns, table.groups(keys)
    else:
        wall, groups = table["wall_ns"].to_numpy(dtype=np.int64), _groups(table, keys)
    found = []
    for rows in rows_of(groups, int(groups.max()) + 1):
        host = str(_text(table, "hostname", int(rows[0])))
        window = windows.get(host)
        if window is None:
            continue
        mine = wall[rows]
        inside = (mine >= window[0]) & (mine < window[1])
        if inside.any():
            found.append(SampleSeries(host, mine[inside], window, rows[inside], table, numbers))
    return found


def _text(table: pd.DataFrame | SampleTable, column: str, row: int) -> object:
    if isinstance(table, SampleTable):
        return table.texts[column][row]
    return table[column].iloc[row]


def _groups(table: pd.DataFrame, keys: list[str]) -> NDArray[np.int64]:
    """The number of each row's group among those of equal keys in their order, (rows,).

    Rows of a group mostly follow one another, so that only the first one of each run is looked up.
    """
    import pandas as pd

    new = np.ones(len(table), dtype=np.bool_)
    new[1:] = False
    for key in keys:
        column = table[key]
        values = column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
        own = values.to_numpy()
        new[1:] |= own[1:] != own[:-1]
    first = np.flatnonzero(new)
    runs = table.iloc[first].groupby(keys, sort=True, dropna=False, observed=True).ngroup()
    return np.repeat(runs.to_numpy(dtype=np.int64), np.diff(np.append(first, len(table))))


def mean_of(series: list[SampleSeries], column: str) -> float | None:
    """Mean over series of each one's mean, samples weighing the time around them; None without a number."""
    means = []
    for item in series:
        values = item.numbers(column)
        known = ~np.isnan(values)
        if known.any():
            weights = _weights(item.wall_ns[known], item.window)
            means.append(float(np.average(values[known], weights=weights)))
    return float(np.mean(means)) if means else None


def _weights(wall_ns: NDArray[np.int64], window: Window) -> NDArray[np.float64]:
    """The time nearer to each sample than to another, within the window."""
    middles = (wall_ns[1:] - wall_ns[:-1]) / 2 + (wall_ns[:-1] - window[0])
    edges = np.concatenate(([0.0], middles, [float(window[1] - window[0])]))
    return np.asarray(np.maximum(np.diff(edges), 1.0), dtype=np.float64)


def _peak(series: list[SampleSeries], column: str) -> float | None:
    every = (item.numbers(column) for item in series)
    peaks = [float(np.nanmax(values)) for values in every if not np.isnan(values).all()]
    return max(peaks, default=None)


def _peak_share(series: list[SampleSeries], used: str, total: str) -> float | None:
    """The largest used / total in percent, where both are known and the total is not 0."""
    shares = []
    for item in series:
        part, whole = item.numbers(used), item.numbers(total)
        known = ~np.isnan(part) & (whole > 0)
        if known.any():
            shares.append(float((100.0 * part[known] / whole[known]).max()))
    return max(shares, default=None)
