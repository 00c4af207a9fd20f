"""Reads `nvidia-smi dmon -o DT`: a table with spaces, whose header names the columns."""

from __future__ import annotations

from typing import Any

from aorta.artefacts.samples import GpuSample, number
from aorta.errors import ArtefactError

_COLUMNS = {
    "pwr": "power_draw_w",
    "gtemp": "temperature",
    "sm": "utilization_gpu",
    "mem": "utilization_memory",
    "fb": "memory_used_mb",
    "pclk": "sm_clock_mhz",
}


def is_dmon(line: str) -> bool:
    """Returns True if the line is a header of dmon."""
    words = _words(line)
    return line.startswith("#") and "gpu" in words and not {"pid", "command"}.intersection(words)


def _words(line: str) -> list[str]:
    """Returns the cells of a line, also of `--format csv`."""
    return line.lstrip("#").replace(",", " ").split()


def parse_dmon(text: str) -> tuple[list[tuple[str, GpuSample]], int]:
    """Returns each sample with its time as `YYYY/MM/DD HH:MM:SS`, and the number of lines that are none.

    Raises:
        ArtefactError: the lines have no date and time.
    """
    samples: list[tuple[str, GpuSample]] = []
    header: list[str] = []
    bad = 0
    for line in text.splitlines():
        words = _words(line)
        if line.startswith("#"):
            header = words if "gpu" in words else header
            continue
        row = dict(zip(header, words, strict=False))
        if len(words) != len(header) or not row.get("gpu", "").isdigit():
            bad += bool(words)
            continue
        day, moment = row.get("Date"), row.get("Time")
        if day is None or moment is None:
            missing = " or ".join(name for name in ("date", "time") if name.capitalize() not in row)
            raise ArtefactError(
                f"lines of `nvidia-smi dmon` without a {missing} cannot be matched with steps",
                "record with `nvidia-smi dmon -o DT`, or with `aorta monitor`",
            )
        known = {name: row[column] for column, name in _COLUMNS.items() if column in row}
        values: dict[str, Any] = {name: number(cell) for name, cell in known.items()}
        samples.append(
            (f"{day[:4]}/{day[4:6]}/{day[6:]} {moment}", GpuSample(index=int(row["gpu"]), **values))
        )
    return samples, bad
