"""Describes what a job asked Slurm for, against what it used."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.records import Record


class ResourceUse(Record, frozen=True, kw_only=True):
    """One resource. Null means not measured or not requested."""

    what: Literal["time", "memory", "cpus", "gpus"]
    requested: float | None
    used: float | None
    unit: Literal["s", "bytes", "CPUs", "GPUs"]
    used_pct: float | None
    source: str
    """The source of the usage."""


class ResourceTable(Record, frozen=True, kw_only=True):
    """All resources of a job."""

    rows: list[ResourceUse]
    sbatch: list[str] = field(default_factory=list)
    """Options to ask for less next time, such as `--mem=12G`. Empty if nothing measured says so."""
    notes: list[str] = field(default_factory=list)
