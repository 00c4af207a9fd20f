"""Runs as data frames, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from aorta.artefacts.analysis import Analysis, Problem
from aorta.artefacts.files import is_file, is_folder
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario, runs
from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_names import Phase
from aorta.errors import ArtefactError
from aorta.readers.run import RunData, read_run
from aorta.readers.run_identity import job_id
from aorta.units import NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd

    from aorta.artefacts.step_columns import StepColumns

_STEP = (
    "global_step", "wall_start_ns", "wall_end_ns", "mono_start_ns", "mono_end_ns", "samples",
    "memory_peak_bytes",
)  # fmt: skip
_PARTS = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns", "host_ns", "comm_ns")
_ROWS = ("breakdown", "findings", "runs", "problems")


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
    problems: pd.DataFrame
    """One row per file of a run that is missing or cannot be read, and why."""
    analyses: tuple[Analysis, ...]
    """The analysis that `aorta analyze` wrote; runs that were not analysed have none."""


def load(path: str | Path) -> RunFrames:
    """Returns the tables of a run directory, of a folder of runs, or of one `profiling_analysis.json`.

    Nothing is analysed here: findings, breakdown and verdict are those that `aorta analyze` or `aorta
    aggregate` wrote. Slurm is not asked. A file that cannot be read is a row of `problems`.

    Raises:
        ArtefactError: nothing of aorta is there, or `path` is an analysis that cannot be read.
    """
    here = Path(path)
    if is_file(here):
        return _frames([_Read(None, None, read_json(here, Analysis))])
    if is_file(RunDir(here).manifest) or is_file(RunDir(here).analysis):
        return _frames([_read(RunDir(here), None)])
    found = runs(here) if is_folder(here) else []
    if not found:
        raise ArtefactError(
            f"{here} is not a run, a folder of runs or a profiling_analysis.json",
            "name results/profiling or one of its run directories",
        )
    return _frames([_read(run, scenario) for scenario, run in found])


@dataclass(frozen=True, slots=True)
class _Read:
    data: RunData | None
    scenario: Scenario | None
    analysis: Analysis | None
    broken: tuple[Problem, ...] = ()

    def labels(self) -> dict[str, str | None]:
        """Returns the scenario and the job, by the manifest, the analysis or the folders' names."""
        manifest = self.data.account.manifest if self.data is not None else None
        if manifest is not None:
            return {"scenario": manifest.scenario, "job_id": manifest.job_id}
        if self.analysis is not None:
            return {"scenario": self.analysis.scenario, "job_id": self.analysis.job_id}
        return {
            "scenario": self.scenario.name if self.scenario else None,
            "job_id": job_id(self.data.run) if self.data is not None else None,
        }


def _read(run: RunDir, scenario: Scenario | None) -> _Read:
    data = read_run(run, query_accounting=False)
    try:
        analysis = read_json(run.analysis, Analysis) if is_file(run.analysis) else None
    except ArtefactError as error:
        reason = error.message.removeprefix(f"{run.analysis}: ")
        return _Read(data, scenario, None, (Problem(file=run.analysis.name, reason=reason),))
    return _Read(data, scenario, analysis)


def _frames(found: list[_Read]) -> RunFrames:
    import pandas as pd

    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in ("steps", "gpu", "cpu")}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _ROWS}
    for one in found:
        data, analysis, of_run = one.data, one.analysis, one.labels()
        wrong = [*(data.problems if data is not None else ()), *one.broken]
        rows["problems"] += [{**of_run, **msgspec.to_builtins(problem)} for problem in wrong]
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
        analyses=tuple(one.analysis for one in found if one.analysis is not None),
    )


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
