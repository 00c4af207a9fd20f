"""`aorta export-traces`: exports, scrubs and sums up the profiler's reports of one node."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export-traces")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--node", required=True, type=click.IntRange(min=0), help="Index of the node whose traces are exported."
)
def command(run: Path, node: int) -> None:
    """Create SQLite exports of RUN's profiler reports, and summary_stats.csv; needs the profiler of that
    node.

    The node agent does this after training. Run it by hand to complete a run that ran out of time.
    """
    from aorta.artefacts.layout import RunDir
    from aorta.errors import RunError
    from aorta.runner.export import export_node

    try:
        export_node(RunDir(run), node)
    except OSError as error:
        raise RunError(f"{error.filename or run}: {error.strerror or error}") from error
