"""`aorta analyze`: one run, or raw traces, to a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.artefacts.files import is_file, is_there
from aorta.commands._overrides import OverrideCommand, threshold_option
from aorta.commands._say import say, say_json
from aorta.errors import AortaError, ArtefactError, ConfigError

if TYPE_CHECKING:
    from aorta.artefacts.analysis import Analysis
    from aorta.artefacts.layout import RunDir
    from aorta.report.web_run import WebRun


NO_VERDICT = 6
"""Exit code where the data does not suffice for a verdict."""


@click.command(cls=OverrideCommand)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the analysis as JSON to FILE; - is standard output."
)
@click.option(
    "--html", metavar="FILE", help="Write the report as one HTML page that opens without a network."
)
@click.option("--redact", is_flag=True, help="Remove host names, users and paths from the HTML page.")
@click.option("--full", is_flag=True, help="Print the whole report of raw traces instead of 40 lines.")
@click.option("--no-accounting", is_flag=True, help="Do not ask Slurm's accounting about the job.")
@threshold_option
def command(
    *,
    paths: tuple[Path, ...],
    json_path: str | None,
    html: str | None,
    redact: bool,
    full: bool,
    no_accounting: bool,
    overrides: tuple[str, ...],
) -> None:
    """Analyse a run directory, such as results/profiling/2node/run_<JOB_ID>, or raw traces.

    For a run directory, profiling_analysis.json, profiling_report.txt, profiling_analysis.png and .svg are
    written to it.

    Other folders are searched for traces of any ranks (Kineto JSON, nsys SQLite or reports, rocprofv3 CSV,
    JSON or rocpd) and for samples (the monitors' and nvidia-smi's CSV), which are recognised by content. At
    most 40 lines are printed, with the verdict first and last. The exit code is 6 if there is not enough
    data for a verdict.
    """
    from aorta.readers.directory import find_run

    if redact and html is None:
        raise ConfigError("--redact is for the HTML page", "name its file with --html FILE")
    refused: OSError | None = None
    if len(paths) == 1 and find_run(paths[0]) is not None:
        shown, refused = _analyze_run(paths[0], json_path, overrides, query_accounting=not no_accounting)
    else:
        shown = _analyze_traces(paths, json_path, overrides, full=full, timeline=html is not None)
    if html is not None:
        from aorta.artefacts.io import write_text
        from aorta.report.web_page import single_page

        _written(html, lambda: write_text(Path(html), single_page(shown, redact=redact)))
    if refused is not None:
        raise ArtefactError(
            f"no report is kept in {paths[0]}: {refused.strerror}",
            "the analysis above is complete; to keep it, copy the run, or use --json FILE or --html FILE",
        )
    if shown.analysis.verdict.kind == "insufficient_data":
        click.get_current_context().exit(NO_VERDICT)


def _analyze_run(
    path: Path, json_path: str | None, overrides: Sequence[str], *, query_accounting: bool
) -> tuple[WebRun, OSError | None]:
    """Returns the run as a page shows it, and why its report could not be written beside its data."""
    from aorta.readers.directory import open_run
    from aorta.report.terminal import run_screen

    run = open_run(path)
    try:
        shown, refused = report(run, overrides, query_accounting=query_accounting)
    except OSError as error:
        raise ArtefactError(
            f"{error.filename or run.root}: {error.strerror}", "ask for read access to this folder"
        ) from error
    except AortaError:
        raise
    except Exception as error:
        from aorta.commands._crash import fault

        # Readers refuse what they can foresee.
        raise fault(error, f"{run.root} could not be analysed") from error
    if json_path is not None:
        _written(json_path, lambda: _write_json(shown.analysis, json_path))
    files = [f"report: {path / run.report.name}"] if refused is None else []
    say(run_screen(shown.analysis, shown.page, str(path), files), err=json_path == "-")
    return shown, refused


def _analyze_traces(
    paths: tuple[Path, ...], json_path: str | None, overrides: Sequence[str], *, full: bool, timeline: bool
) -> WebRun:
    from aorta.artefacts.clean import plain
    from aorta.readers.ahead import Ahead
    from aorta.readers.memory import import_numpy, without_collector

    with without_collector():
        ahead = Ahead(paths)
        import_numpy()
        _refuse_nothing(paths)
        from aorta.commands._traces import read_and_analyze

        analysis, summaries = read_and_analyze(paths, overrides, ahead)
    from aorta.report.bare import bare_page
    from aorta.report.terminal import run_screen
    from aorta.report.web_run import WebRun

    if full and json_path != "-":
        from aorta.report.run import run_text

        say(run_text(analysis))
    if json_path is not None:
        _written(json_path, lambda: _write_json(analysis, json_path))
    said, page = f"{analysis.verdict.kind}: {plain(analysis.verdict.statement)}", bare_page(analysis)
    say(said if full else run_screen(analysis, page, None, []), err=json_path == "-")
    found = []
    if timeline and summaries:
        from aorta.report.excerpt_traced import capture_excerpts

        found = capture_excerpts(summaries, analysis)
    return WebRun("traces", analysis, page, tuple(found), None)


def _written(target: str, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise ArtefactError(f"{target}: {error.strerror}", "name a file that can be written") from error


def _refuse_nothing(paths: tuple[Path, ...]) -> None:
    """Raises the error of `open_run` if the path is missing, or a folder that holds runs and no trace.

    Several run directories are refused, too: an analysis is of one run.
    """
    from aorta.readers.directory import find_run, open_run, runs_in
    from aorta.readers.traces import find

    named = [path for path in paths if find_run(path) is not None]
    if len(named) > 1:
        import shlex

        raise ConfigError(
            f"{len(named)} run directories are named, but an analysis reads only one run",
            f"compare them: aorta compare {shlex.quote(str(named[0]))} {shlex.quote(str(named[1]))}",
        )
    if len(paths) > 1 or is_file(paths[0]):
        return
    inside = is_there(paths[0]) and any(paths[0].iterdir())
    if inside and (not runs_in(paths[0]) or find(paths, [])):
        return
    open_run(paths[0])


def report(
    run: RunDir, overrides: Sequence[str] = (), *, query_accounting: bool
) -> tuple[WebRun, OSError | None]:
    """Analyse `run` and write its JSON, text and plots beside the data, or say why they cannot be written."""
    from aorta.artefacts.io import write_json
    from aorta.readers.memory import import_numpy

    import_numpy()
    from aorta.commands._analysis import analyze_run
    from aorta.report.page import run_page, run_timelines
    from aorta.report.run import write_run_report
    from aorta.report.web_run import WebRun

    found = analyze_run(run, query_accounting=query_accounting, overrides=overrides, shown=True)
    timelines = run_timelines(*found)
    page = run_page(found.analysis, found.data, timelines)
    refused = None
    try:
        write_json(run.analysis, found.analysis)
        write_run_report(run, found.analysis, page, found.data)
    except OSError as error:
        refused = error
    name = found.analysis.scenario or "run"
    return WebRun(name, found.analysis, page, timelines[0], str(run.root)), refused


def _write_json(analysis: Analysis, target: str) -> None:
    from aorta.artefacts.io import write_json

    if target == "-":
        say_json(analysis)
    else:
        write_json(Path(target), analysis)
