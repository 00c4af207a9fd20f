"""Reads `amd-smi monitor`: its names of columns differ by version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aorta.artefacts.lines import cells_of
from aorta.artefacts.samples import GpuSample, number
from aorta.errors import ArtefactError
from aorta.units import NS_PER_S

_COLUMNS = {
    "utilization_gpu": ("gfx", "gfx_util", "gfx_activity"),
    "utilization_memory": ("mem", "mem_util", "umc_activity"),
    "memory_used_mb": ("vram_used", "used_vram"),
    "memory_total_mb": ("vram_total", "total_vram"),
    "temperature": ("hotspot_temperature", "hotspot", "gpu_t", "gpu_temp"),
    "power_draw_w": ("power_usage", "socket_power", "power"),
    "sm_clock_mhz": ("gfx_clock", "gfx_clk", "gfx_0_clk"),
}
_KNOWN = frozenset(name for names in _COLUMNS.values() for name in names)
_FEWEST = 2
_LEAST_TOTAL_MB = 1024.0
"""No GPU has less memory: newer versions count it in GB, and their CSV has no units."""
_SIZES = re.compile(r"\s*([\d.]+)\s*/\s*([\d.]+)\s*([KMGT]i?B)?", re.IGNORECASE)
TABLE_NAMES = {"gfx%": "gfx", "mem%": "mem"}
"""Names of columns that tables for people have, to those of CSV."""
Timed = tuple[int | None, GpuSample]


def is_amd_smi(header: list[str]) -> bool:
    """Returns True for the header of a table of amd-smi: a GPU's number, and columns that only it has."""
    names = [_name(cell) for cell in header]
    return "gpu" in names and len(_KNOWN.intersection(names)) >= _FEWEST


def parse_amd_smi_csv(text: str) -> tuple[list[Timed], int]:
    """Returns each sample with its ns since the epoch, and the number of lines that are no samples.

    The second die of an MI250X has no sensor of its own and says 0 W: that is no measured 0.

    Raises:
        ArtefactError: the table has no column of times.
    """
    header: list[str] = []
    found: list[Timed] = []
    bad = 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in cells_of(line, skip_initial_space=True) or []]
        if is_amd_smi(cells):  # each run that writes into a file repeats it
            header = [_name(cell) for cell in cells]
            if "timestamp" not in header:
                raise ArtefactError(
                    "a table from amd-smi without times cannot be matched with steps",
                    "record with `amd-smi monitor --csv -w 1`, or with `aorta monitor`",
                )
            continue
        if len(cells) != len(header) or not header:
            bad += bool(line.strip())
            continue
        row = dict(zip(header, cells, strict=True))
        index = number(row["gpu"])
        if index is None:
            bad += 1
            continue
        found.append((wall_ns(row["timestamp"]), flat_sample(row)))
    return found, bad


def _name(cell: str) -> str:
    return cell.strip().lower().partition(" ")[0].removesuffix("%")


def flat_sample(row: Mapping[str, str]) -> GpuSample:
    """Returns the sample of one row of `amd-smi monitor`, by names of columns in lower case."""
    values: dict[str, Any] = {}
    for name, columns in _COLUMNS.items():
        values[name] = next((n for c in columns if c in row and (n := number(row[c])) is not None), None)
    values["power_draw_w"] = values["power_draw_w"] or None
    both = _SIZES.match(row.get("vram_usage", ""))
    if both:
        values["memory_used_mb"], values["memory_total_mb"] = float(both[1]), float(both[2])
    total = values["memory_total_mb"]
    if total is not None and total < _LEAST_TOTAL_MB:
        values["memory_total_mb"] = total * 1024
        used = values["memory_used_mb"]
        values["memory_used_mb"] = None if used is None else used * 1024
    index = number(row["gpu"])
    return GpuSample(index=None if index is None else int(index), **values)


def wall_ns(text: object) -> int | None:
    """Returns the ns since the epoch of a time of amd-smi, which counts seconds; None where it is none."""
    seconds = number(text)
    return round(seconds * NS_PER_S) if seconds is not None and seconds > 0 else None
