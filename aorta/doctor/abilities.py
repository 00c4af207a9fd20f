"""Conclusions from the checks: what will work here, what will not, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aorta.doctor.records import Ability, Check, Works


@dataclass(frozen=True, slots=True)
class _Need:
    name: str
    command: str
    needs: tuple[str, ...]
    """Checks without which it does not work."""
    wants: tuple[str, ...] = ()
    """Checks without which a part of it is left out; their notes also make it work in part."""


_TRAINING = ("python", "packages", "torch", "collectives", "results")
_COMFORT = ("tmp", "shm", "open files")
_NEEDS = (
    _Need("analyze", "aorta analyze, aorta aggregate", ("packages",), ("results",)),
    _Need("profile", "aorta profile", _TRAINING, (*_COMFORT, "cpus")),
    _Need(
        "submit",
        "aorta submit, aorta wait",
        (*_TRAINING, "slurm programs", "slurm controller", "partitions", "results on the nodes"),
        ("accounting", "partitions"),
    ),
    _Need("gpu training", "aorta profile on GPUs", ("torch", "gpus", "torch devices"), ("collectives",)),
    _Need("gpu sampling", "gpu_monitor.csv", ("gpus", "gpu sampling"), ("gpu sampling",)),
    _Need("nsys", "--profiler nsys", ("nsys",), ("gpus", "tmp", "gpu metrics permission")),
    _Need("rocprofv3", "--profiler rocprofv3", ("gpus", "rocprofv3"), ("tmp",)),
    _Need("test", "make test", ("python", "packages", "test packages", "torch"), ("cluster programs",)),
    _Need("cluster-up", "make cluster-up", ("cluster programs",), ()),
)
NAMES = tuple(need.name for need in _NEEDS)
DEFAULT = ("analyze", "profile|submit")
"""Abilities that have to work for exit code 0, unless the user says otherwise."""

_VENDOR = {"nsys": "nvidia", "rocprofv3": "amd"}
_BLOCKING_NOTES = {"gpu training": ("torch devices",)}
"""Checks whose notes, too, mean that it does not work."""


def abilities(checks: Sequence[Check]) -> tuple[Ability, ...]:
    """The abilities by the checks; a check that was not made counts as one that found nothing."""
    by_name = {check.name: check for check in checks}
    return tuple(_ability(need, by_name) for need in _NEEDS)


def _ability(need: _Need, checks: dict[str, Check]) -> Ability:
    absent = [_get(checks, name) for name in need.needs if _get(checks, name).state == "missing"]
    blocking = _BLOCKING_NOTES.get(need.name, ())
    absent += [_get(checks, name) for name in blocking if _get(checks, name).state == "note"]
    vendor = _get(checks, "gpus").value.get("vendor")
    wanted = _VENDOR.get(need.name)
    if wanted is not None and vendor is not None and vendor != wanted:
        absent.insert(
            0, Check("gpus", "missing", f"the GPUs here are from {vendor}, this needs GPUs from {wanted}")
        )
    if absent:
        return _result(need, "no", absent)
    limited = [_get(checks, name) for name in need.wants if _get(checks, name).state != "ok"]
    return _result(need, "in part" if limited else "yes", limited)


def _get(checks: dict[str, Check], name: str) -> Check:
    return checks.get(name, Check(name, "missing", "was not checked"))


def _result(need: _Need, works: Works, because: Sequence[Check]) -> Ability:
    reasons = tuple(dict.fromkeys(f"{check.name}: {check.text}" for check in because))
    todo = tuple(dict.fromkeys(check.hint for check in because if check.hint))
    return Ability(need.name, need.command, works, reasons, todo)
