"""`aorta reduce`: a run's traces to one summary per rank."""

from __future__ import annotations

from pathlib import Path

import click

from aorta.commands._say import say
from aorta.errors import ArtefactError


@click.command()
@click.argument("run_dir", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.option(
    "--node", type=click.IntRange(min=0), help="Reduce only the ranks of this node. Default: all ranks."
)
def command(run_dir: Path, node: int | None) -> None:
    """Reduce the traces in RUN_DIR to nodes/node<i>/traces/rank_<r>.json.

    A job does this on each node after training, so that the analysis can read summaries. Run it by hand if a
    job was ended before it could do so. Traces that already have a summary are reduced again.
    """
    from aorta.metrics.trace_summary import REDUCER
    from aorta.readers.directory import open_run
    from aorta.readers.run_traces import reduce_run

    run = open_run(run_dir)
    try:
        for folder, made in reduce_run(run, REDUCER, node):
            for problem in made.problems:
                say(f"{folder.root.name}: not reduced: {problem.reason}", err=True)
            ranks = ", ".join(map(str, made.ranks))
            say(f"{folder.root.name}: {f'reduced rank {ranks}' if ranks else 'no trace to reduce'}")
    except OSError as error:
        raise ArtefactError(
            f"{error.filename or run.root}: {error.strerror}",
            "give yourself write access, because the summaries are written there",
        ) from error
