"""`aorta configure`: write scripts/profiling_config.sh for this cluster."""

from __future__ import annotations

import getpass
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.commands._say import say
from aorta.errors import PlanError
from aorta.typeable import is_checkout

if TYPE_CHECKING:
    from aorta.launch.site import Site


@click.command("configure")
@click.option("--account", envvar="SLURM_ACCOUNT", help="Default: SLURM_ACCOUNT, otherwise asked.")
@click.option("--partition", envvar="SLURM_PARTITION", help="Default: SLURM_PARTITION, otherwise asked.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(min=0),
    help="Default: asked, suggesting all GPUs of a node.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("scripts/profiling_config.sh"),
    show_default=True,
)
def command(account: str | None, partition: str | None, gpus_per_node: int | None, output: Path) -> None:
    """Ask for the account, partition and GPUs per node, check them against the cluster, and save them."""
    from aorta.artefacts.io import write_exact
    from aorta.launch.settings import SiteSettings, check_settings, render_settings
    from aorta.launch.site import ask_site
    from aorta.launch.tools import call

    site = ask_site(getpass.getuser(), call)
    chosen = partition or _ask_partition(site)
    settings = SiteSettings(
        account or _ask_account(site),
        chosen,
        gpus_per_node if gpus_per_node is not None else _ask_gpus(site, chosen),
    )
    check_settings(settings, site)
    try:
        write_exact(output, render_settings(settings))
        output.chmod(0o600)
    except OSError as error:
        raise PlanError(f"{output}: {error.strerror}", "choose another file with --output") from error
    if site.accounts is None:
        what = (
            "no account is used" if settings.account is None else f"account {settings.account} is not checked"
        )
        say(f"note: this cluster has no accounting; {what}")
    named = [settings.account or "no account", f"partition {settings.partition}"]
    say(f"{output}: {', '.join(named)}, {settings.gpus_per_node} GPUs per node")
    then = "./scripts/run_profiling.sh" if is_checkout(Path.cwd()) else "aorta submit -- YOUR_PROGRAM.py"
    say(f"next: source {shlex.quote(str(output))} && {then}")


def _ask_partition(site: Site) -> str:
    default = site.default_partition.name if site.default_partition else None
    return _ask("partition", "--partition", sorted(site.partitions), default)


def _ask_account(site: Site) -> str | None:
    if site.accounts is None:
        return None
    from aorta.launch.site import ask_default_account
    from aorta.launch.tools import call

    names = sorted(site.accounts)
    default = names[0] if len(names) == 1 else ask_default_account(getpass.getuser(), call)
    return _ask("account", "--account", names, default if default in names else None)


def _ask_gpus(site: Site, partition: str) -> int:
    from aorta.launch.checks import partitions

    most = max(part.gpus for part in partitions(partition, site))
    if most == 0 or not sys.stdin.isatty():
        return most
    answer: int = click.prompt("GPUs per node", type=click.IntRange(0, most), default=most)
    return answer


def _ask(what: str, option: str, names: list[str], default: str | None) -> str:
    """The answer of the person at the terminal; without one the default.

    Raises:
        PlanError: no terminal is available and there is no default.
    """
    if sys.stdin.isatty():
        if default is not None:
            answer: str = click.prompt(what, type=click.Choice(names), default=default)
            return answer

        def named(text: str) -> str:
            # Without this, an empty line would be asked again without a word.
            if text not in names:
                raise click.UsageError(f"there is no default; type one of {', '.join(names)}")
            return text

        question = f"{what} ({', '.join(names)})"
        typed: str = click.prompt(question, default="", show_default=False, value_proc=named)
        return typed
    if default is None:
        raise PlanError(
            f"which {what}? there are: {', '.join(names)}", f"use {option}, or run this in a terminal"
        )
    return default
