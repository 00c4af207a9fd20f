"""A sweep's runs to its document."""

from __future__ import annotations

import contextlib
from pathlib import Path

from aorta.artefacts.analysis import Analysis, Problem
from aorta.artefacts.clean import plain
from aorta.artefacts.files import entries
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.study_layout import SweepDocs
from aorta.artefacts.submissions import SubmissionDir
from aorta.artefacts.sweep import SweepAnalysis, SweepPoint
from aorta.commands._analysis import analyze_run, ended
from aorta.commands._crash import why
from aorta.commands._reports import keep_earlier, writing
from aorta.commands._say import say
from aorta.launch.submitted import read_sweep
from aorta.metrics.sweep import PointRun, curves, sensitivities, settings, statement, why_not
from aorta.report.content import spreads_one_machine
from aorta.report.sweep import write_sweep


def aggregate_sweep(docs: Path, submission: SubmissionDir, results: Path) -> SweepAnalysis:
    """Analyse every point of a sweep and write `SWEEP_ANALYSIS.md`, `.json` and plots below `docs`.

    Raises:
        ArtefactError: the sweep's record cannot be read, or the documents cannot be written.
    """
    sweep = read_sweep(submission)
    newest, shared = 0, False
    runs, failed = [], []
    for point in sweep.points:
        run = _run_of(submission, point)
        try:
            analysis, seen = _analysed(run)
        except Exception as error:
            # Whatever a broken run does to the analysis, the other points are still reported.
            analysis, seen = None, 0
            reason: str | None = why(error, "could not be analysed")
        else:
            reason = why_not(PointRun(point, analysis))
        newest = max(newest, seen)
        shared = shared or (analysis is not None and spreads_one_machine(analysis))
        runs.append(PointRun(point, analysis))
        if reason is not None:
            file = str(run.root) if run is not None else None
            failed.append(Problem(file=file, reason=f"{point.scenario} {point.label}: {reason}"))
    found = settings(sweep, runs)
    whole = SweepAnalysis(
        generated_wall_ns=newest,
        statement=statement(found),
        sweep=sweep,
        settings=[setting.result for setting in found],
        curves=curves(found),
        sensitivities=sensitivities(sweep, found),
        failed=failed,
        shared_machine=shared,
    )
    with writing(docs):
        keep_earlier(docs, results, SweepDocs(docs).json.stem, newest)
        write_sweep(SweepDocs(docs), whole)
    return whole


def _run_of(submission: SubmissionDir, point: SweepPoint) -> RunDir | None:
    """The run of a point, beside its submission; None where it has no job or wrote nothing."""
    if point.job_id is None:
        return None
    run = RunDir.of(submission.root.parent, Scenario(point.scenario), point.job_id)
    return run if entries(run.root) else None


def _analysed(run: RunDir | None) -> tuple[Analysis | None, int]:
    """The analysis of a run, kept beside its data, and the time of its newest input."""
    if run is None:
        return None, 0
    analysis, data, _ = analyze_run(run)
    # Somebody else's results are read all the same.
    with contextlib.suppress(OSError):
        write_json(run.analysis, analysis)
    return analysis, ended(data)


def echo_sweep(analysis: SweepAnalysis, docs: Path) -> None:
    """Returns where the document is, what it says, and what does not count."""
    say(f"sweep:   {SweepDocs(docs).markdown}")
    say(f"result:  {plain(analysis.statement)}")
    for problem in analysis.failed:
        say(f"missing: {plain(problem.reason)}")
