"""Runs as data frames, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.files import is_file, is_folder
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario, runs
from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_record import Phase
from aorta.errors import ArtefactError
from aorta.readers.run import RunData, read_run
from aorta.units import NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd

    from aorta.artefacts.step_columns import StepColumns

_STEP = (
    "global_step", "wall_start_ns", "wall_end_ns", "mono_start_ns", "mono_end_ns", "samples",
    "memory_peak_bytes",
)  # fmt: skip
_PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns", "host_ns", "comm_ns")


@dataclass(frozen=True, slots=True)
class RunFrames:
    """Tables of one run or of several. Each row names its scenario and job. NaN and None: not measured."""

    steps: pd.DataFrame
    """One row per rank and step."""
    gpu: pd.DataFrame
    """One row per sample of a GPU."""
    cpu: pd.DataFrame
    """One row per sample of a node."""
    breakdown: pd.DataFrame
    """One row per rank: means over the steady steps, in ms."""
    findings: pd.DataFrame
    """One row per finding."""
    runs: pd.DataFrame
    """One row per run: verdict, step time, throughput, utilisation."""
    analyses: tuple[Analysis, ...]
    """What `aorta analyze` wrote; runs that nobody analysed have none."""


def load(path: str | Path) -> RunFrames:
    """Returns the tables of a run directory, of a folder of runs, or of one `profiling_analysis.json`.

    Nothing is analysed here: findings, breakdown and verdict are those that `aorta analyze` or `aorta
    aggregate` wrote. Slurm is not asked.

    Raises:
        ArtefactError: nothing of aorta is there.
    """
    here = Path(path)
    if is_file(here):
        return _frames([(None, None, read_json(here, Analysis))])
    if is_file(RunDir(here).manifest) or is_file(RunDir(here).analysis):
        return _frames([_read(RunDir(here), None)])
    found = runs(here) if is_folder(here) else []
    if not found:
        raise ArtefactError(
            f"{here} is no run, no folder of runs and no profiling_analysis.json",
            "name results/profiling or one of its run directories",
        )
    return _frames([_read(run, scenario) for scenario, run in found])


def _read(run: RunDir, scenario: Scenario | None) -> tuple[RunData, str | None, Analysis | None]:
    analysis = read_json(run.analysis, Analysis) if is_file(run.analysis) else None
    return read_run(run, query_accounting=False), scenario.name if scenario else None, analysis


def _frames(found: list[tuple[RunData | None, str | None, Analysis | None]]) -> RunFrames:
    import pandas as pd

    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in ("steps", "gpu", "cpu")}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("breakdown", "findings", "runs")}
    for data, scenario, analysis in found:
        of_run = _labels(data, scenario, analysis)
        if data is not None:
            by_rank = [_steps(rank, steps) for rank, steps in sorted(data.records.by_rank.items())]
            for name, some in (("steps", by_rank), ("gpu", [data.gpu]), ("cpu", [data.cpu])):
                tables[name] += [table.assign(**of_run) for table in some if table is not None]
        if analysis is not None:
            ranks, findings = msgspec.to_builtins((analysis.breakdown.per_rank, analysis.findings))
            for name, more in (("breakdown", ranks), ("findings", findings), ("runs", [summary(analysis)])):
                rows[name] += [{**of_run, **row} for row in more]
    return RunFrames(
        **{
            name: pd.concat(some, ignore_index=True) if some else pd.DataFrame()
            for name, some in tables.items()
        },
        **{name: pd.DataFrame(some) for name, some in rows.items()},
        analyses=tuple(one for _, _, one in found if one is not None),
    )


def _labels(data: RunData | None, scenario: str | None, analysis: Analysis | None) -> dict[str, str | None]:
    manifest = data.account.manifest if data is not None else None
    if manifest is not None:
        return {"scenario": manifest.scenario, "job_id": manifest.job_id}
    return {
        "scenario": scenario or (analysis.scenario if analysis else None),
        "job_id": analysis.job_id if analysis else None,
    }


def _steps(rank: int, steps: StepColumns) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {"rank": rank}
    for name in (*_STEP, *_PARTS):
        values = pd.Series(steps.column(name)).astype("Int64")
        columns[name] = values.mask(values == ABSENT)
    table = pd.DataFrame(columns).assign(step_ms=steps.duration_ns / NS_PER_MS)
    for phase in get_args(Phase):
        table.loc[steps.phase_is(phase), "phase"] = phase
    return table


def summary(analysis: Analysis) -> dict[str, Any]:
    """Returns the numbers and words of a run that a table of runs shows; None was not measured."""
    found: dict[str, Any] = {
        "verdict": analysis.verdict.kind,
        "statement": analysis.verdict.statement,
        "world_size": analysis.world_size,
        "nodes": analysis.nodes,
        "steady_steps": analysis.data_quality.steady_steps,
    }
    for block in (analysis.throughput, analysis.utilization):
        if block is not None:
            found |= _numbers(msgspec.to_builtins(block))
    rows = analysis.breakdown.per_rank
    for name in ("step_ms", "compute_ms", "exposed_comm_ms", "data_wait_ms", "host_ms"):
        values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        found[name] = sum(values) / len(values) if values else None
    for use in analysis.resources.rows if analysis.resources is not None else []:
        found[f"{use.what}_used_pct"] = use.used_pct
    return found


def _numbers(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if value is None or isinstance(value, (int, float))}
