"""`aorta staff`: what a computing centre writes down about jobs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from aorta.artefacts.names import RESULTS
from aorta.commands._ages import Age
from aorta.commands._groups import SuggestingGroup
from aorta.commands._say import say
from aorta.errors import ArtefactError


@click.group("staff", cls=SuggestingGroup)
def command() -> None:
    """Write one line per job for Slurm's AdminComment, and metrics for Prometheus."""


@command.command()
@click.argument("job_id")
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    show_default=True,
    help="Folder of the runs.",
)
@click.option("--analyze", "analyse", is_flag=True, help="Analyse the run first if that was not done.")
def line(job_id: str, results: Path, analyse: bool) -> None:
    """Print one line about the run of JOB_ID: verdict, step time, and used compared with requested
    resources.
    """
    from aorta.artefacts.files import is_there
    from aorta.artefacts.io import write_json
    from aorta.artefacts.layout import runs
    from aorta.commands._accounted import accounted, one_line

    found = [(scenario, run) for scenario, run in runs(results) if run.root.name == f"run_{job_id}"]
    if not found:
        raise ArtefactError(f"no run of job {job_id} below {results}", "name its folder with --results")
    scenario, run = found[-1]
    if analyse and not is_there(run.analysis):
        from aorta.commands._analysis import analyze_run

        write_json(run.analysis, analyze_run(run).analysis)
    one = accounted(run, scenario)
    if one is None:
        raise ArtefactError(f"{run.root} has no manifest of job {job_id}", "the job wrote none")
    say(one_line(one))


@command.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    default=(RESULTS,),
    help="Folder of runs; may be repeated, such as for several users.",
)
@click.option(
    "--since", type=Age(), default="7d", show_default=True, help="Include runs that ended within this time."
)
def metrics(output: Path, results: tuple[Path, ...], since: int) -> None:
    """Write OUTPUT.prom for node_exporter's textfile collector, replacing the file atomically."""
    from aorta.artefacts.io import write_exact
    from aorta.commands._accounted import accounted_runs, prometheus_text

    if output.suffix != ".prom":
        raise click.UsageError(f"{output} does not end in .prom: the textfile collector would not read it")
    now = time.time()
    after = int((now - since) * 1e9)
    found = [one for folder in results for one in accounted_runs(folder, after)]
    try:
        write_exact(output, prometheus_text(found, round(now, 3)))
    except OSError as error:
        raise ArtefactError(f"{output}: {error.strerror}", "name a folder that can be written") from error
    say(f"{len(found)} runs in {output}")
