"""`aorta analyze`: one run, or raw traces, to a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.artefacts.files import is_file, is_there
from aorta.commands._say import say, say_json
from aorta.errors import AortaError, ArtefactError

if TYPE_CHECKING:
    from aorta.artefacts.analysis import Analysis
    from aorta.artefacts.layout import RunDir
    from aorta.artefacts.page import Page


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the analysis as JSON to FILE; - is standard output."
)
@click.option("--full", is_flag=True, help="Print the whole report of raw traces, not 40 lines of it.")
@click.option("--no-accounting", is_flag=True, help="Do not ask Slurm's accounting about the job.")
def command(paths: tuple[Path, ...], json_path: str | None, full: bool, no_accounting: bool) -> None:
    """Analyse a run directory, such as results/profiling/2node/run_<JOB_ID>, or raw traces.

    Of a run directory, profiling_analysis.json, profiling_report.txt, profiling_analysis.png and .svg are
    written into it.

    Anything else is searched for traces of any ranks (Kineto JSON, nsys SQLite or reports, rocprofv3 CSV,
    JSON or rocpd) and for samples (the monitors' and nvidia-smi's CSV), recognised by content. At most 40
    lines are printed, the verdict first and last.
    """
    from aorta.readers.directory import find_run

    if len(paths) == 1 and find_run(paths[0]) is not None:
        _analyze_run(paths[0], json_path, query_accounting=not no_accounting)
    else:
        _analyze_traces(paths, json_path, full=full)


def _analyze_run(path: Path, json_path: str | None, *, query_accounting: bool) -> None:
    from aorta.readers.directory import open_run
    from aorta.report.terminal import run_screen

    run = open_run(path)
    try:
        analysis, page = report(run, query_accounting=query_accounting)
        if json_path is not None:
            _write_json(analysis, json_path)
    except OSError as error:
        raise ArtefactError(
            f"{error.filename or run.root}: {error.strerror}", "the analysis needs to write there"
        ) from error
    except AortaError:
        raise
    except Exception as error:
        from aorta.commands._crash import fault

        # Readers refuse what they can foresee.
        raise fault(error, f"{run.root} could not be analysed") from error
    files = [f"report: {path / run.report.name}"]
    say(run_screen(analysis, page, str(path), files), err=json_path == "-")


def _analyze_traces(paths: tuple[Path, ...], json_path: str | None, *, full: bool) -> None:
    from aorta.artefacts.clean import plain
    from aorta.commands._traces import analyze_traces
    from aorta.report.bare import bare_page
    from aorta.report.run import run_text
    from aorta.report.terminal import run_screen

    _refuse_nothing(paths)
    analysis = analyze_traces(paths)
    if full and json_path != "-":
        say(run_text(analysis))
    if json_path is not None:
        try:
            _write_json(analysis, json_path)
        except OSError as error:
            raise ArtefactError(
                f"{error.filename or json_path}: {error.strerror}", "name a file that can be written"
            ) from error
    said = f"{analysis.verdict.kind}: {plain(analysis.verdict.statement)}"
    screen = said if full else run_screen(analysis, bare_page(analysis), None, [])
    say(screen, err=json_path == "-")


def _refuse_nothing(paths: tuple[Path, ...]) -> None:
    """Raises the error of `open_run` if the path is missing, or a folder that holds runs and no trace."""
    from aorta.readers.directory import holds_runs, open_run
    from aorta.readers.traces import find

    if len(paths) > 1 or is_file(paths[0]):
        return
    inside = is_there(paths[0]) and any(paths[0].iterdir())
    if inside and (not holds_runs(paths[0]) or find(paths, [])):
        return
    open_run(paths[0])


def report(run: RunDir, *, query_accounting: bool) -> tuple[Analysis, Page]:
    """Analyse `run` and write its JSON, text and plots beside the data."""
    from aorta.artefacts.io import write_json
    from aorta.commands._analysis import analyze_run
    from aorta.report.page import run_page
    from aorta.report.run import write_run_report

    found = analyze_run(run, query_accounting=query_accounting, shown=True)
    write_json(run.analysis, found.analysis)
    page = run_page(*found)
    write_run_report(run, found.analysis, page, found.data)
    return found.analysis, page


def _write_json(analysis: Analysis, target: str) -> None:
    from aorta.artefacts.io import write_json

    if target == "-":
        say_json(analysis)
    else:
        write_json(Path(target), analysis)
