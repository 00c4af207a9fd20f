"""One run analysed: what `analyze` and `aggregate` share."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from aorta.artefacts.analysis import Analysis, Submitted
from aorta.artefacts.files import is_file
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.page import Excerpt
from aorta.artefacts.submissions import submissions
from aorta.diagnosis.analyse_run import analyse
from aorta.diagnosis.resources import resources
from aorta.errors import AortaError, ArtefactError
from aorta.launch.submitted import read_jobs
from aorta.metrics.trace_summary import REDUCER
from aorta.readers.nsys_metrics import read_counters
from aorta.readers.run import RunData, read_run
from aorta.readers.run_traces import read_run_traces
from aorta.report.excerpt_traced import traced_excerpts


class Analyzed(NamedTuple):
    """A run's analysis and what it is of, but for its traces, which take memory."""

    analysis: Analysis
    data: RunData
    traced: list[Excerpt]
    """The longest traced step and a typical one; empty if the breakdown is not of traces, or is not shown."""


def analyze_run(
    run: RunDir,
    *,
    query_accounting: bool = True,
    others: Sequence[Analysis] = (),
    overrides: Sequence[str] = (),
    shown: bool = False,
) -> Analyzed:
    """Read and analyse a run; nothing that is missing or broken in it is fatal.

    Args:
        run: the run directory, which gets its merged monitor files and `sacct_summary.txt`.
        query_accounting: ask Slurm about the job.
        others: analyses of other runs, of which the run may have repeats.
        overrides: of thresholds, `thresholds.KEY=VALUE`.
        shown: a report of it is drawn.
    """
    data = read_run(run, query_accounting=query_accounting)
    traces = read_run_traces(run, REDUCER)
    analysis = msgspec.structs.replace(
        analyse(data, traces, others, overrides), submitted=submitted(run, data), resources=resources(data)
    )
    analysis = _with_counters(run, data, analysis)
    return Analyzed(analysis, data, traced_excerpts(traces, data, analysis) if shown else [])


def _with_counters(run: RunDir, data: RunData, analysis: Analysis) -> Analysis:
    """Returns the analysis with the counters that nsys sampled, where the monitors have none."""
    config, use = data.account.config, analysis.utilization
    if config is None or not config.capture.gpu_metrics or use is None:
        return analysis
    found, problems = read_counters(sorted(run.nsys.glob("*.sqlite")))
    quality = analysis.data_quality
    quality = msgspec.structs.replace(quality, problems=[*quality.problems, *problems])
    names = ("sm_active_pct", "tensor_active_pct", "dram_active_pct")
    more = {
        name: getattr(found, name)
        for name in names
        if found is not None and getattr(use, name) is None and getattr(found, name) is not None
    }
    if found is not None and more:
        note = f"{', '.join(more)}: by nsys, {found.gpus} GPUs during its capture, not over all steady steps"
        quality = msgspec.structs.replace(quality, notes=[*quality.notes, note])
    return msgspec.structs.replace(
        analysis, data_quality=quality, utilization=msgspec.structs.replace(use, **more)
    )


def submitted(run: RunDir, data: RunData) -> Submitted | None:
    """Returns where a run came from; None without a manifest."""
    manifest = data.account.manifest
    if manifest is None:
        return None
    return Submitted(
        command=shlex.join(manifest.plan.command) or None,
        commit=manifest.program_commit if manifest.plan.workload is None else manifest.code_version or None,
        submission=_submission(run, manifest.job_id),
    )


def _submission(run: RunDir, job_id: str) -> str | None:
    """The name of the submission beside the run's scenario whose list of jobs names `job_id`."""
    for submission in reversed(submissions(run.root.absolute().parent.parent)):
        with contextlib.suppress(AortaError):
            if submission.jobs.is_file() and any(job.job_id == job_id for job in read_jobs(submission)):
                return submission.root.name
    return None


def ended(data: RunData) -> int:
    """The time of a run's newest input in ns since the epoch, from the data itself; 0 where nothing says."""
    times = [int(steps.column("wall_end_ns")[-1]) for steps in data.records.by_rank.values()]
    if data.account.manifest is not None:
        times.append(data.account.manifest.started_wall_ns)
    if data.account.status is not None:
        times += [node.ended_wall_ns or node.started_wall_ns for node in data.account.status.nodes]
    return max(times, default=0)


def analyses_of(runs: Sequence[RunDir]) -> list[Analysis]:
    """Returns what earlier analyses made of these runs.

    What none was made of, or cannot be read, is left out.
    """
    found = []
    for run in runs:
        with contextlib.suppress(ArtefactError):
            if is_file(run.analysis):
                found.append(read_json(run.analysis, Analysis))
    return found
