"""`aorta timeline`: all ranks of a run, or of traces, on one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.artefacts.files import is_there
from aorta.commands._say import say
from aorta.errors import ArtefactError

if TYPE_CHECKING:
    from aorta.artefacts.events import Trace
    from aorta.report.timeline import Content


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("run.perfetto.json.gz"),
    show_default=True,
    help="The file to write; compressed if it ends in .gz.",
)
def command(paths: tuple[Path, ...], output: Path) -> None:
    """Write one timeline of a run directory, or of raw traces, for https://ui.perfetto.dev.

    The timeline contains every rank's GPU streams, host ranges and step records, and the monitors' counters,
    on the wall clock of the lowest rank. For a run without traces, it contains the step records and
    counters.
    """
    from aorta.readers.directory import find_run
    from aorta.report.timeline import write_timeline

    run = find_run(paths[0]) if len(paths) == 1 else None
    if run is not None:
        from aorta.commands._timeline import of_run

        content, traces = of_run(run)
    else:
        content, traces = _of_traces(paths)
    try:
        events = write_timeline(output, content, traces)
    except OSError as error:
        raise ArtefactError(
            f"{error.filename or output}: {error.strerror}", "name a file that can be written with -o"
        ) from error
    say(f"timeline: {output} ({events:,} events)")
    say(f"clocks:   {content.alignment.basis}")


def _of_traces(paths: Sequence[Path]) -> tuple[Content, Iterator[tuple[Trace, int]]]:
    from aorta.commands._timeline import of_traces

    for path in paths:
        if not is_there(path):
            raise ArtefactError(f"{path} does not exist", "expected a run directory, or traces")
    return of_traces(paths)
