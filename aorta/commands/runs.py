"""`aorta runs`: what has been run and reported."""

from __future__ import annotations

import time
from pathlib import Path

import click

from aorta.commands._json import echo_json, json_option
from aorta.commands._options import docs_option, results_option
from aorta.commands._say import say


@click.command("runs")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Entries of the table, the newest ones. --json has all.",
)
@results_option
@docs_option
@json_option
def command(limit: int, results: Path, docs: Path | None, as_json: bool) -> None:
    """List the runs and reports below the results folder, the newest first."""
    from aorta.commands._inventory import inventory
    from aorta.commands._reports import docs_folder

    found = inventory(results, docs_folder(docs, results))
    if as_json:
        echo_json({"entries": [entry.as_object() for entry in found]})
        return
    if not found:
        say(f"no run below {results}; start one with `make profile` or `make submit-profiling`")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from aorta.artefacts.clean import plain

    table = Table(box=None, pad_edge=False)
    for title in ("when", "what", "job", "state", "verdict", "where"):
        table.add_column(title, overflow="fold")
    for entry in found[:limit]:
        when = "-" if entry.wall_ns is None else _local(entry.wall_ns)
        what = entry.name if entry.what == "run" else entry.what
        cells = (when, what, entry.job_id, entry.state, entry.verdict, str(entry.path))
        table.add_row(*(Text(plain(cell) if cell else "-") for cell in cells))
    Console().print(table)
    if len(found) > limit:
        say(f"and {len(found) - limit} older: --limit {len(found)}")


def _local(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(wall_ns / 1e9))
