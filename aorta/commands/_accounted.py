"""Runs as a centre's staff counts them: hours held, hours lost and why, in a table, one line or metrics."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.clean import plain
from aorta.artefacts.files import is_file
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario, runs
from aorta.artefacts.records import RunStatus
from aorta.artefacts.resources import ResourceTable
from aorta.commands._inventory import own_manifest
from aorta.errors import ArtefactError
from aorta.units import NS_PER_S

T = TypeVar("T")
_HOUR_NS = 3600 * NS_PER_S
_CLOCKS_NS = _HOUR_NS
"""The most that a node's clock may be ahead of the clock here."""
_MOST_RANKS = 1_000_000
"""A run that claims more ranks, or none, is not counted: one wrong file would outweigh all others."""
LONGEST_LINE = 200
MS_PER_S = 1e3
Samples = list[tuple[dict[str, str], float | None]]


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """One run. None is what its files do not say."""

    scenario: str
    job_id: str
    state: str | None
    ended_wall_ns: int | None
    ranks: int
    gpus: int
    hours: float | None
    """From the first node's start to the last node's end."""
    verdict: str | None
    lost_pct: float | None
    """Share of each step that the verdict's cause costs. None if it was not predicted."""
    step_ms: float | None
    resources: ResourceTable | None

    @property
    def rank_hours(self) -> float | None:
        """Hours times ranks."""
        return None if self.hours is None else self.hours * self.ranks

    @property
    def gpu_hours(self) -> float | None:
        """Hours times GPUs. None if the run has none, or if its duration is unknown."""
        return None if self.hours is None or not self.gpus else self.hours * self.gpus


def accounted(run: RunDir, scenario: Scenario) -> AccountedRun | None:
    """Returns a run in numbers; None for a folder that aorta did not make."""
    from aorta.report import content

    manifest = own_manifest(run)
    if manifest is None:
        return None
    status = _read(run.status, RunStatus)
    analysis = _read(run.analysis, Analysis)
    starts = [node.started_wall_ns for node in status.nodes] if status is not None else []
    ends = [node.ended_wall_ns for node in status.nodes] if status is not None else []
    over = bool(ends) and all(end is not None for end in ends)
    last = max((end for end in ends if end is not None), default=None) if over else None
    if last is not None and not (
        0 < min(starts) <= last <= time.time_ns() + _CLOCKS_NS and 0 < manifest.world_size <= _MOST_RANKS
    ):
        last = None
    finding = content.main_finding(analysis) if analysis is not None else None
    price = content.cost(analysis, finding) if analysis is not None and finding is not None else None
    kind = analysis.verdict.kind if analysis is not None else None
    return AccountedRun(
        scenario=scenario.name,
        job_id=manifest.job_id,
        state=status.state if status is not None else None,
        ended_wall_ns=last,
        ranks=manifest.world_size,
        gpus=sum(len(node.gpus) for node in manifest.nodes),
        hours=(last - min(starts)) / _HOUR_NS if last is not None else None,
        verdict=kind,
        lost_pct=0.0 if kind == "healthy" else price[1] if price is not None else None,
        step_ms=content.step_ms(analysis) if analysis is not None else None,
        resources=analysis.resources if analysis is not None else None,
    )


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return read_json(path, kind) if is_file(path) else None
    except ArtefactError:
        return None


def accounted_runs(results: Path, since_wall_ns: int | None = None) -> list[AccountedRun]:
    """Returns the runs below `results` that ended since then. None means all that ended."""
    found = [one for scenario, run in runs(results) if (one := accounted(run, scenario)) is not None]
    ended = [one for one in found if one.ended_wall_ns is not None]
    return [one for one in ended if since_wall_ns is None or (one.ended_wall_ns or 0) >= since_wall_ns]


@dataclass(frozen=True, slots=True)
class LostHours:
    """Hours of the runs with one verdict. None if no run has GPUs, or no loss was predicted."""

    cause: str
    runs: int
    rank_hours: float
    gpu_hours: float | None
    lost_rank_hours: float | None
    lost_gpu_hours: float | None
    not_predicted: int
    """Runs whose loss is not known; their hours are not among those lost."""


def lost_hours(found: Sequence[AccountedRun]) -> list[LostHours]:
    """Returns one row per cause, the most hours lost first."""
    by_cause: dict[str, list[AccountedRun]] = defaultdict(list)
    for one in found:
        by_cause[one.verdict or "not analysed"].append(one)
    rows = [_lost(cause, some) for cause, some in by_cause.items()]
    return sorted(rows, key=lambda row: (-(row.lost_rank_hours or 0.0), -row.rank_hours, row.cause))


def _lost(cause: str, some: Sequence[AccountedRun]) -> LostHours:
    known = [one for one in some if one.lost_pct is not None]
    return LostHours(
        cause=cause,
        runs=len(some),
        rank_hours=math.fsum(one.rank_hours or 0.0 for one in some),
        gpu_hours=_sum([one.gpu_hours for one in some]),
        lost_rank_hours=_sum([_part(one.rank_hours, one.lost_pct) for one in known]),
        lost_gpu_hours=_sum([_part(one.gpu_hours, one.lost_pct) for one in known]),
        not_predicted=len(some) - len(known),
    )


def _part(hours: float | None, pct: float | None) -> float | None:
    return None if hours is None or pct is None else hours * pct / 100.0


def _sum(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) if there else None


def one_line(run: AccountedRun) -> str:
    """Returns a run in one short line of plain characters, for `AdminComment`."""
    parts = [f"aorta {run.scenario}: {run.verdict or 'not analysed'}"]
    if run.lost_pct:
        parts[0] += f" costs {run.lost_pct:.0f}%"
    if run.step_ms is not None:
        parts.append(f"step {run.step_ms:.4g} ms")
    used = (
        [row for row in run.resources.rows if row.used_pct is not None] if run.resources is not None else []
    )
    if used:
        parts.append("used " + " ".join(f"{row.what} {row.used_pct:.0f}%" for row in used))
    if run.resources is not None and run.resources.sbatch:
        parts.append("enough " + " ".join(run.resources.sbatch))
    hours = run.gpu_hours if run.gpus else run.rank_hours
    if hours is not None:
        parts.append(f"{hours:.3g} {'GPU' if run.gpus else 'rank'}-hours")
    line = plain("; ".join(parts)).encode("ascii", "replace").decode().replace('"', "'")
    return line[:LONGEST_LINE]


def prometheus_text(found: Sequence[AccountedRun], now_s: float) -> str:
    """Returns the runs as metrics for node_exporter's textfile collector; what is not known has no line."""
    states: dict[str, int] = defaultdict(int)
    for one in found:
        states[one.state or "unknown"] += 1
    rows = lost_hours(found)
    by_cause: list[tuple[str, str, list[float | None]]] = [
        ("aorta_rank_hours", "Rank-hours by verdict.", [row.rank_hours for row in rows]),
        ("aorta_gpu_hours", "GPU-hours by verdict.", [row.gpu_hours for row in rows]),
        (
            "aorta_lost_rank_hours",
            "Rank-hours lost to the verdict's cause, if they were predicted.",
            [row.lost_rank_hours for row in rows],
        ),
        (
            "aorta_lost_gpu_hours",
            "GPU-hours lost to the verdict's cause, if they were predicted.",
            [row.lost_gpu_hours for row in rows],
        ),
    ]
    counts: Samples = [({"state": state}, count) for state, count in states.items()]
    families: list[tuple[str, str, Samples]] = [
        ("aorta_runs", "Runs that ended in the period, by state.", counts),
        *(
            (name, about, [({"cause": row.cause}, value) for row, value in zip(rows, values, strict=True)])
            for name, about, values in by_cause
        ),
        ("aorta_step_seconds", "Mean step of the newest run, by scenario.", _newest_steps(found)),
        ("aorta_written_timestamp_seconds", "Time at which this file was written.", [({}, now_s)]),
    ]
    lines = []
    for name, about, samples in families:
        there = [(labels, value) for labels, value in samples if value is not None]
        if there:
            lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
            lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in there]
    return "\n".join(lines) + "\n"


def _newest_steps(found: Sequence[AccountedRun]) -> Samples:
    newest = {one.scenario: one.step_ms for one in sorted(found, key=lambda one: one.ended_wall_ns or 0)}
    return [({"scenario": name}, None if ms is None else ms / MS_PER_S) for name, ms in newest.items()]


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
