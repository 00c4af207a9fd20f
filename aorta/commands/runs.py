"""`aorta runs`: what has been run and reported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.commands._ages import Age
from aorta.commands._json import echo_json, json_option
from aorta.commands._options import docs_option, results_option
from aorta.commands._say import say

if TYPE_CHECKING:
    from aorta.commands._inventory import InventoryEntry

_LEAST_VERDICT = 30
"""Characters of a verdict that a line has, however narrow the terminal is."""


@click.command("runs")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Number of newest entries in the table; --json has all.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the step time of each run into FILE.png and FILE.svg.",
)
@click.option("--lost", is_flag=True, help="Show hours used and lost per cause instead of the list.")
@click.option(
    "--since",
    type=Age(),
    metavar="AGE",
    help="With --lost: include runs that ended within this time. Default: all runs.",
)
@results_option
@docs_option
@json_option
def command(
    *,
    limit: int,
    plot: Path | None,
    lost: bool,
    since: int | None,
    results: Path,
    docs: Path | None,
    as_json: bool,
) -> None:
    """List the runs and reports below the results folder, newest first."""
    if since is not None and not lost:
        raise click.UsageError("--since goes with --lost")
    if lost:
        _lost(results, since, as_json=as_json)
        return
    from aorta.commands._inventory import inventory
    from aorta.commands._reports import docs_folder

    found = inventory(results, docs_folder(docs, results))
    if plot is not None:
        _draw(plot, found)
    if as_json:
        echo_json({"entries": [entry.as_object() for entry in found]})
        return
    if not found:
        say(f"no run below {results}; start one with `aorta profile` or `aorta submit`")
        return
    _show(found[:limit])
    if len(found) > limit:
        say(f"and {len(found) - limit} older: --limit {len(found)}")


def _show(found: Sequence[InventoryEntry]) -> None:
    """Print one line per entry: a path is never cut, and a terminal shows as much of a verdict as fits."""
    import shutil
    import sys

    from aorta.artefacts.clean import plain

    rows = [["when", "what", "job", "state", "where", "verdict"]]
    for entry in found:
        when = "-" if entry.wall_ns is None else _local(entry.wall_ns)
        what = entry.name if entry.what == "run" else entry.what
        verdict = entry.verdict.split(". ")[0] if entry.verdict else None  # its first sentence
        cells = (when, what, entry.job_id, entry.state, str(entry.path), verdict)
        rows.append([plain(cell) if cell else "-" for cell in cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - sum(width + 2 for width in widths[:-1])
        widths[-1] = max(room, _LEAST_VERDICT)
    for *row, said in rows:
        cut = said if len(said) <= widths[-1] else f"{said[: widths[-1] - 1]}…"
        say("  ".join((*map(str.ljust, row, widths), cut)).rstrip())


def _lost(results: Path, since_s: int | None, *, as_json: bool) -> None:
    """Say how many hours each cause holds and loses."""
    from dataclasses import asdict

    from aorta.commands._accounted import accounted_runs, lost_hours
    from aorta.report.tables import Table, text_table

    after = None if since_s is None else time.time_ns() - since_s * 1_000_000_000
    rows = lost_hours(accounted_runs(results, after))
    if as_json:
        echo_json({"causes": [asdict(row) for row in rows]})
        return
    if not rows:
        say(f"no run below {results} ended in that time")
        return

    def hours(value: float | None) -> str:
        return "—" if value is None else f"{value:.3g}"

    cells = tuple(
        (
            row.cause,
            str(row.runs),
            hours(row.rank_hours),
            hours(row.lost_rank_hours),
            hours(row.gpu_hours),
            hours(row.lost_gpu_hours),
            str(row.not_predicted),
        )
        for row in rows
    )
    titles = ("cause", "runs", "rank-hours", "lost", "GPU-hours", "lost GPU-h", "loss not known")
    say(text_table(Table(titles, cells), 0))


def _local(wall_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(wall_ns / 1e9))


def _draw(target: Path, found: Sequence[InventoryEntry]) -> None:
    """Draw the step time of the runs that were analysed."""
    from aorta.artefacts.analysis import Analysis
    from aorta.artefacts.io import read_json
    from aorta.artefacts.layout import RunDir
    from aorta.errors import ArtefactError
    from aorta.metrics.before_after import step_ms
    from aorta.report import style
    from aorta.report.trend import Point, trend_figure

    scenarios: dict[str, list[Point]] = {}
    for entry in sorted(found, key=lambda entry: entry.wall_ns or 0):
        if entry.what != "run" or entry.wall_ns is None:
            continue
        try:
            analysis = read_json(RunDir(entry.path).analysis, Analysis)
        except ArtefactError:
            continue
        if (value := step_ms(analysis)) is not None:
            interval = analysis.throughput.step_ms_interval if analysis.throughput else None
            scenarios.setdefault(entry.name, []).append(Point(entry.wall_ns, value, interval))
    base = target.with_suffix("") if target.suffix in (".png", ".svg") else target
    files = [base.with_name(f"{base.name}.{kind}") for kind in ("png", "svg")]
    try:
        with style.styled():
            style.save(trend_figure(scenarios), *files)
    except OSError as error:
        raise ArtefactError(
            f"{error.filename or target}: {error.strerror}", "name a file that can be written"
        ) from error
    count = sum(len(points) for points in scenarios.values())
    say(f"drawn: {files[0]} ({count} runs with a step time)", err=True)
