"""`aorta analyze`: one run to its report."""

from __future__ import annotations

from pathlib import Path

import click

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import RunDir
from aorta.errors import ArtefactError


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the analysis as JSON to FILE; - is standard output."
)
@click.option("--no-accounting", is_flag=True, help="Do not ask Slurm's accounting about the job.")
def command(path: Path, json_path: str | None, no_accounting: bool) -> None:
    """Analyse the run directory PATH, such as results/profiling/2node/run_<JOB_ID>.

    Writes profiling_analysis.json, profiling_report.txt, profiling_analysis.png and .svg into it.
    """
    from aorta.readers.run import open_run

    run = open_run(path)
    try:
        analysis = report(run, query_accounting=not no_accounting)
        if json_path is not None:
            _write_json(analysis, json_path)
    except OSError as error:
        raise ArtefactError(
            f"{error.filename or run.root}: {error.strerror}", "the analysis needs to write there"
        ) from error
    click.echo(f"{analysis.verdict.kind}: {analysis.verdict.statement}", err=json_path == "-")
    click.echo(f"report: {path / run.report.name}", err=json_path == "-")


def report(run: RunDir, *, query_accounting: bool) -> Analysis:
    """Analyse `run` and write its JSON, text and plots beside the data."""
    from aorta.artefacts.io import write_json
    from aorta.commands._analysis import analyze_run
    from aorta.report.run import write_run_report

    analysis, data = analyze_run(run, query_accounting=query_accounting)
    write_json(run.analysis, analysis)
    write_run_report(run, analysis, data)
    return analysis


def _write_json(analysis: Analysis, target: str) -> None:
    from aorta.artefacts.io import write_json

    if target == "-":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(analysis), indent=2))
    else:
        write_json(Path(target), analysis)
