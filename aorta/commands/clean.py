"""`aorta clean`: remove old runs and earlier reports, and nothing that aorta did not write."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.commands._ages import Age, Size
from aorta.commands._options import results_option
from aorta.commands._say import say
from aorta.errors import ArtefactError

if TYPE_CHECKING:
    from aorta.commands._prune import Old

_LAST_DAY_S = 86_400
_SHOWN = 3
"""Most files per folder that are named where they cannot be removed."""


@click.command("clean")
@click.option(
    "--older-than",
    type=Age(),
    metavar="AGE",
    help="Age since the last change, such as 12h, 30d or 8w.",
)
@click.option(
    "--keep-below",
    type=Size(),
    metavar="SIZE",
    help="Remove the oldest folders until the rest is smaller, such as 20G. Folders that changed in the last "
    "day stay.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, without removing anything.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@results_option
def command(older_than: int | None, keep_below: int | None, dry_run: bool, yes: bool, results: Path) -> int:
    """Remove runs, earlier reports and submissions in which nothing has changed for AGE.

    With --keep-below, only as many folders are removed as necessary, oldest first. A folder is removed only
    if its own record says that aorta created it, and only files that aorta wrote are removed. If you added
    files, they and their folder are kept and listed. The newest report is kept.
    """
    from aorta.commands._prune import beyond, old_folders

    if older_than is None and keep_below is None:
        raise click.UsageError("say what to remove: --older-than 30d, --keep-below 20G, or both")
    age_s = older_than if older_than is not None else _LAST_DAY_S
    found = old_folders(results, time.time_ns() - age_s * 1_000_000_000)
    if keep_below is not None:
        found, rest = beyond(found, results, keep_below)
        if rest > keep_below:
            say(
                f"{rest / 1e6:,.1f} MB stay, which is more than requested: these folders are too young, or "
                f"aorta did not create them"
            )
    if not found:
        say(f"nothing below {results} {'is that old' if keep_below is None else 'has to go'}")
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
                "this removes files but cannot ask for confirmation here: add --yes, or check with --dry-run"
            )
        if not click.confirm("Remove them?"):
            say("nothing was removed")
            return 0
    return _removed(found)


def _removed(found: Sequence[Old]) -> int:
    """Remove the folders, and say what stays; the exit status is 4 where something could not be removed."""
    from aorta.commands._prune import remove
    from aorta.commands._removal import NOT_OURS

    status = 0
    for item in found:
        stays = list(remove(item))
        refused = [line for line in stays if not line.endswith(NOT_OURS)]
        for line in (*(line for line in stays if line not in refused), *refused[:_SHOWN]):
            say(f"stays: {line}")
        if refused:
            status = ArtefactError.exit_code
        if len(refused) > _SHOWN:
            say(f"stays: {len(refused) - _SHOWN} more in {item.root}, which could not be removed")
    return status
