"""Reads `amd-smi monitor --csv`: its names of columns differ by version."""

from __future__ import annotations

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
    "temperature": ("hotspot_temperature", "hotspot", "gpu_t"),
    "power_draw_w": ("power_usage", "socket_power", "power"),
    "sm_clock_mhz": ("gfx_clock", "gfx_clk", "gfx_0_clk"),
}
_KNOWN = frozenset(name for names in _COLUMNS.values() for name in names)
_FEWEST = 2
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
                    "a table of amd-smi without times cannot be placed beside steps",
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
        found.append((_wall_ns(row["timestamp"]), _sample(int(index), row)))
    return found, bad


def _name(cell: str) -> str:
    return cell.strip().lower().partition(" ")[0].removesuffix("%")


def _sample(index: int, row: dict[str, str]) -> GpuSample:
    values: dict[str, Any] = {}
    for name, columns in _COLUMNS.items():
        values[name] = next((n for c in columns if c in row and (n := number(row[c])) is not None), None)
    values["power_draw_w"] = values["power_draw_w"] or None
    return GpuSample(index=index, **values)


def _wall_ns(text: str) -> int | None:
    seconds = number(text)
    return round(seconds * NS_PER_S) if seconds is not None and seconds > 0 else None
