"""Requested against used, in words."""

from __future__ import annotations

from aorta.artefacts.resources import ResourceTable, ResourceUse
from aorta.report.tables import Table
from aorta.report.text import number
from aorta.units import BYTES_PER_GIB

_NAMES = {"time": "time", "memory": "node memory", "cpus": "CPUs", "gpus": "GPUs"}


def resource_table(found: ResourceTable) -> Table:
    """Returns one row per resource; values that were not measured or requested are dashes."""
    titles = ("resource", "requested", "used", "used %", "by")
    return Table(titles, tuple(_row(row) for row in found.rows))


def _row(row: ResourceUse) -> tuple[str, ...]:
    share = "—" if row.used_pct is None else f"{row.used_pct:.0f}"
    return (_NAMES[row.what], _amount(row.requested, row), _amount(row.used, row), share, row.source)


def _amount(value: float | None, row: ResourceUse) -> str:
    if value is None:
        return "—"
    if row.unit == "s":
        seconds = round(value)
        return f"{seconds // 3600}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    return f"{number(value / BYTES_PER_GIB)} GiB" if row.unit == "bytes" else number(value)


def next_time(found: ResourceTable) -> str:
    """Returns the lines to write next time; empty where nothing measured says so."""
    if found.sbatch:
        return f"Request next time (what this run used, plus a fifth): {' '.join(found.sbatch)}."
    return "; ".join(found.notes)
