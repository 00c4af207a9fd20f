"""`aorta clean`: remove old runs and earlier reports, and nothing that aorta did not write."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import click

from aorta.commands._options import results_option
from aorta.commands._say import say

_AGE = re.compile(r"(\d+)([hdw])")
_SECONDS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400}


class Age(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Seconds, written as `12h`, `30d` or `8w`."""

    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The seconds of `value`."""
        match = _AGE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no age: write 12h, 30d or 8w", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


@click.command("clean")
@click.option(
    "--older-than",
    type=Age(),
    required=True,
    metavar="AGE",
    help="Such as 12h, 30d or 8w, by the last change.",
)
@click.option("--dry-run", is_flag=True, help="List what would go; remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@results_option
def command(older_than: int, dry_run: bool, yes: bool, results: Path) -> int:
    """Remove runs, earlier reports and submissions in which nothing has changed for AGE.

    A folder goes only if its own record says that aorta made it, and only the files that aorta writes go.
    Files of yours in it stay, with the folder, and are named. The newest report stays.
    """
    from aorta.commands._prune import old_folders, remove

    found = old_folders(results, time.time_ns() - older_than * 1_000_000_000)
    if not found:
        say(f"nothing below {results} is that old")
        return 0
    for item in found:
        say(f"{item.words}: {item.root}")
    size = sum(item.size for item in found)
    say(f"{len(found)} folders, {size / 1e6:,.1f} MB")
    if dry_run:
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "this removes files and cannot ask here: add --yes, or look with --dry-run"
            )
        click.confirm("Remove them?", abort=True)
    for item in found:
        for line in remove(item):
            say(f"stays: {line}")
    return 0
