"""Every scenario analysed, and the document over all of them: what `aggregate` and `profile` share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis, Problem
from aorta.artefacts.files import is_file
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands._analysis import Analyzed, analyses_of, analyze_run, ended
from aorta.commands._choice import Choice, Chosen, choose, repeats
from aorta.commands._crash import why
from aorta.commands._progress import ProgressLine, place_words
from aorta.commands._reports import keep_earlier, writing
from aorta.diagnosis.findings import likeliest
from aorta.errors import ArtefactError
from aorta.metrics.repeats import is_valid
from aorta.metrics.scaling import newest_valid, scaling_curves
from aorta.readers.run import RunData
from aorta.report.aggregate import ScenarioReport, build
from aorta.report.document import write_documents
from aorta.report.front import NAME
from aorta.report.page import run_page, run_timelines
from aorta.report.run import write_run_report
from aorta.report.terminal import scenarios_screen


def run_aggregate(
    results: Path,
    docs: Path,
    *,
    submission: SubmissionDir | None = None,
    redact: bool = False,
    overrides: Sequence[str] = (),
    show: Callable[[str], object] | None = None,
) -> Aggregate:
    """Analyse each scenario's run, write its report and the document over all of them below `docs`.

    Earlier runs of a scenario by the same version of this code, with the same program, settings and batches,
    are its repeats: the scaling is of their mean, with what lies between them, and a finding must gain more
    than they differ by (not where a submission is named).

    Args:
        results: the base results directory.
        docs: where `BOTTLENECK_ANALYSIS.md`, `.json` and `bottleneck_analysis/` go.
        submission: take exactly its jobs (see `choose`).
        redact: take names of hosts, users and paths out of the HTML page.
        overrides: of thresholds, `thresholds.KEY=VALUE`.
        show: prints the screen of a terminal.

    Raises:
        ArtefactError: there is no run at all.
    """
    choice = choose(results, submission)
    if not choice.chosen and not choice.missing:
        raise ArtefactError(
            f"no run below {results}: nothing to aggregate",
            f"it is a run itself: `aorta analyze {shlex.quote(str(results))}`"
            if is_file(RunDir(results).manifest)
            else "run `aorta profile` on this machine or `aorta submit` on a cluster first",
        )
    others = [] if submission is not None else analyses_of(repeats(results, choice.chosen))
    reports, missing, newest = _analyse(choice, others, overrides)
    analyses = [report.analysis for report in reports]
    curves = scaling_curves(analyses, others, likeliest=likeliest)
    aggregate = build(reports, curves, missing, newest, choice.silent)
    with writing(docs), ProgressLine(Console(stderr=True), "drawing the report"):
        keep_earlier(docs, results, NAME, newest)
        write_documents(docs, aggregate, reports, redact=redact)
    if show is not None:
        files = [f"missing: {problem.reason}" for problem in missing[:5]]
        files += [f"report:  {docs / f'BOTTLENECK_ANALYSIS.{kind}'}" for kind in ("md", "html")]
        show(scenarios_screen(aggregate, reports, files))
    return aggregate


def _analyse(
    choice: Choice, others: Sequence[Analysis], overrides: Sequence[str]
) -> tuple[list[ScenarioReport], list[Problem], int]:
    """Reports of the scenarios, what gave nothing, and the time of the newest input (ns since the epoch)."""
    reports: list[ScenarioReport] = []
    missing, newest = list(choice.missing), 0
    count = len(choice.chosen)
    with ProgressLine(Console(stderr=True), "analysing") as line:
        for place, item in enumerate(choice.chosen):
            name = place_words("scenario", place, count, item.scenario.name)
            line.show("", done=place, total=count, name=f"analysing {name}")
            try:
                report, data, passed_over = _one(item, others, overrides)
            except Exception as error:
                # The last line of defence, so broad: what a broken run does to the analysis cannot be
                # foreseen, and it must not cost the other scenarios their report.
                reason = why(error, f"{item.scenario.name} could not be analysed")
                missing.append(Problem(file=str(item.run.root), reason=reason))
            else:
                reports.append(report)
                missing += passed_over
                newest = max(newest, ended(data))
                if not data.records.by_rank:
                    missing.append(_empty(report))
    return reports, missing, newest


def _one(
    item: Chosen, others: Sequence[Analysis], overrides: Sequence[str]
) -> tuple[ScenarioReport, RunData, list[Problem]]:
    """The report of a scenario, from its newest valid run; newer ones that are not valid are named."""
    tried: list[tuple[RunDir, Analyzed]] = []
    for run in (item.run, *item.older):
        tried.append((run, analyze_run(run, others=others, overrides=overrides, shown=True)))
        if is_valid(tried[-1][1].analysis):
            break
    picked, passed_over = newest_valid([found.analysis for _, found in reversed(tried)])
    run, chosen = next(
        ((run, found) for run, found in tried if picked and found.analysis is picked[0]), tried[0]
    )
    analysis, data, _ = chosen
    timelines = run_timelines(*chosen)
    page = run_page(analysis, data, timelines)
    try:
        write_json(run.analysis, analysis)
        write_run_report(run, analysis, page, data)
    except OSError as error:  # such as somebody else's results
        reason = f"{item.scenario.name}: its own report could not be written: {error.strerror}"
        passed_over.append(Problem(file=str(error.filename or run.root), reason=reason))
    report = ScenarioReport(
        item.scenario, run, analysis, page, item.note, timelines[0], asked=item.asked, program=item.program
    )
    return report, data, passed_over


def _empty(report: ScenarioReport) -> Problem:
    state = report.analysis.data_quality.state or "no marker says how it ended"
    reason = f"{report.scenario.name}: {report.run.root.name} contains no usable step record (state: {state})"
    return Problem(file=str(report.run.root), reason=reason)
