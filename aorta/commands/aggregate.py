"""`aorta aggregate`: analyse every scenario and write `docs/BOTTLENECK_ANALYSIS.md`."""

from __future__ import annotations

from pathlib import Path

import click

from aorta.artefacts.files import is_file
from aorta.artefacts.names import RESULTS
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands._options import docs_option
from aorta.commands._overrides import OverrideCommand, threshold_option
from aorta.commands._say import say


@click.command("aggregate", cls=OverrideCommand)
@click.argument("results", type=click.Path(path_type=Path), default=RESULTS, metavar="[BASE_RESULTS_DIR]")
@docs_option
@click.option(
    "--submission",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use only the jobs of this submission (results/profiling/run_<timestamp>).",
)
@click.option("--redact", is_flag=True, help="Remove host names, users and paths from the HTML page.")
@threshold_option
def command(
    results: Path, docs: Path | None, submission: Path | None, redact: bool, overrides: tuple[str, ...]
) -> None:
    """Analyse every scenario below BASE_RESULTS_DIR and write BOTTLENECK_ANALYSIS.md.

    The analysis uses the jobs of the newest submission, and runs started by hand that are newer or of other
    scenarios. The report names missing and broken files, and uses the rest. BASE_RESULTS_DIR is
    results/profiling by default. If a sweep was submitted last, or is named, SWEEP_ANALYSIS.md is written.
    The previous report is kept, and `aorta runs` lists it. Exit status 6: the verdict is insufficient_data.
    """
    from aorta.commands._reports import docs_folder
    from aorta.commands._scenarios import run_aggregate

    docs = docs_folder(docs, results)
    sweep, others = _what(results, SubmissionDir(submission) if submission is not None else None)
    if sweep is not None:
        from aorta.commands._sweeps import aggregate_sweep, echo_sweep

        echo_sweep(aggregate_sweep(docs, sweep, results), docs)
        if not others:
            return
    chosen = SubmissionDir(submission) if submission is not None else None
    found = run_aggregate(results, docs, submission=chosen, redact=redact, overrides=overrides, show=say)
    if found.verdict.kind == "insufficient_data":
        from aorta.commands.analyze import NO_VERDICT

        click.get_current_context().exit(NO_VERDICT)


def _what(results: Path, named: SubmissionDir | None) -> tuple[SubmissionDir | None, bool]:
    """The sweep to aggregate, if any, and whether there are scenarios beside it.

    A submission that is named is all; otherwise the newest one is looked at, and a sweep takes nothing from
    the report over the scenarios.
    """
    from aorta.commands._choice import choose
    from aorta.errors import ArtefactError
    from aorta.launch.submitted import newest_submission

    if named is not None:
        return (named, False) if is_file(named.sweep) else (None, True)
    try:
        newest = newest_submission(results)
    except ArtefactError:
        return None, True
    if not is_file(newest.sweep):
        return None, True
    choice = choose(results)
    return newest, bool(choice.chosen or choice.missing)
