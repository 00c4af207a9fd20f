"""`aorta doctor`: what is here, what will work, what will not, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.commands._options import results_option
from aorta.commands._say import say, say_json
from aorta.doctor.abilities import DEFAULT, NAMES
from aorta.typeable import typeable

if TYPE_CHECKING:
    from aorta.doctor.records import Examination


@click.command("doctor")
@results_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on standard output.")
@click.option(
    "--need",
    "needed",
    multiple=True,
    type=click.Choice(NAMES),
    help="Exit with 1 unless this works; may be repeated. Default: analyze, and profile or submit.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="Check if hooks work in programs that this interpreter runs.",
)
def command(results: Path, as_json: bool, needed: tuple[str, ...], python: str | None) -> int:
    """Check this machine and say what will work on it, without changing anything.

    On a cluster, run it where you submit and, for GPUs and profilers, inside a job:
    srun -N1 .venv/bin/aorta doctor.

    The exit code is 0 if everything necessary works, even if only in part, and 1 otherwise.
    """
    if python is not None:
        return _hooks(python, as_json=as_json)
    from aorta.doctor.examine import examine

    found = examine(results.absolute(), needed or DEFAULT)
    if as_json:
        import msgspec

        document = {"schema_version": 1, "ok": found.ok, **msgspec.to_builtins(found)}
        say_json(document)
    else:
        _show(found)
    return 0 if found.ok else 1


def _hooks(python: str, *, as_json: bool) -> int:
    """Say whether hooks work under an interpreter; 0 if they do."""
    from aorta.doctor.hooks import examine_hooks

    check = examine_hooks(python)
    if as_json:
        import msgspec

        say_json({"schema_version": 1, "ok": check.state == "ok", "check": msgspec.to_builtins(check)})
    else:
        say(f"{check.name}: {check.state}: {check.text}")
        if check.hint:
            say(f"  -> {check.hint}")
    return 0 if check.state == "ok" else 1


def _show(found: Examination) -> None:
    """Tables on a terminal, one line a finding elsewhere."""
    from rich.console import Console

    from aorta.artefacts.clean import plain

    console = Console()
    if console.is_terminal:
        _tables(console, found)
    else:
        for check in found.checks:
            hint = f" -> {check.hint}" if check.hint and check.state != "ok" else ""
            say(f"{check.state:8} {check.name}: {plain(check.text + hint)}")
        for ability in found.abilities:
            reasons = f": {'; '.join(ability.reasons)}" if ability.reasons else ""
            say(f"{ability.works:8} {ability.name} ({ability.command}){plain(reasons)}")
    named = ", ".join(group.replace("|", " or ") for group in found.lacking or found.needed)
    say(f"{'works' if found.ok else 'does not work'} on {found.host}: {named}")


def _tables(console: object, found: Examination) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from aorta.artefacts.clean import plain

    assert isinstance(console, Console)
    colours = {
        "ok": "green", "yes": "green", "note": "yellow", "in part": "yellow", "missing": "red", "no": "red",
    }  # fmt: skip
    here = Table("", "what is here", "found", "what to do", title=found.host)
    for check in found.checks:
        # Text, never markup: host names and messages of programs may hold brackets.
        hint = plain(typeable(check.hint)) if check.state != "ok" else ""
        row = (check.state, check.name, plain(check.text), hint)
        here.add_row(*[Text(cell, style=colours[check.state] if not i else "") for i, cell in enumerate(row)])
    console.print(here)
    works = Table("", "what works", "command", "what is in the way", "what to do")
    for able in found.abilities:
        cells = (
            able.works,
            able.name,
            typeable(able.command),
            "\n".join(map(plain, able.reasons)),
            "\n".join(map(typeable, able.todo)),
        )
        works.add_row(
            *[Text(cell, style=colours[able.works] if not i else "") for i, cell in enumerate(cells)]
        )
    console.print(works)
