"""`aorta cluster`: a real Slurm cluster on this machine."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from aorta.commands._groups import SuggestingGroup
from aorta.commands._say import say


def _folder_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(".cluster"),
        show_default=True,
        help="Folder of the cluster: configuration, database, logs.",
    )(function)


@click.group("cluster", cls=SuggestingGroup)
def command() -> None:
    """Run a real Slurm cluster on this machine: slurmctld, several slurmd, munge, slurmdbd with MariaDB."""


@command.command()
@_folder_option
@click.option("--nodes", type=click.IntRange(1, 32), default=4, show_default=True, help="Number of nodes.")
@click.option(
    "--netns/--no-netns",
    default=None,
    help="Put nodes in network namespaces. Default: if root and kernel allow it.",
)
@click.option(
    "--rate",
    metavar="RATE",
    help="Limit the rate of each node's link, such as 100mbit; needs network namespaces.",
)
@click.option("--install", is_flag=True, help="Install missing packages with apt-get (root).")
def up(directory: Path, nodes: int, netns: bool | None, rate: str | None, install: bool) -> None:
    """Start the cluster and wait until all nodes are idle."""
    from aorta.cluster import cluster
    from aorta.cluster.config import ClusterDir, ClusterSettings, parse_rate

    began = time.monotonic()
    folder = ClusterDir(directory.absolute())
    rate_bit_s = parse_rate(rate) if rate else None
    use_netns, reason = cluster.choose_netns(netns)
    if reason:
        say(f"no network namespaces: {reason}; all nodes share this machine's address", err=True)
    settings = ClusterSettings(nodes, use_netns, rate_bit_s)
    started = cluster.up(folder, settings, install, lambda text: say(f"cluster: {text}", err=True))
    took = f"started in {time.monotonic() - began:.1f} s" if started else "already up"
    say(
        f"{nodes} nodes idle, {took}. To use them:\n  export SLURM_CONF={shlex.quote(str(folder.slurm_conf))}"
    )


@command.command()
@_folder_option
@click.option("--keep-logs", is_flag=True, help="Leave the logs in the folder.")
def down(directory: Path, keep_logs: bool) -> None:
    """End the cluster and all its jobs, and remove everything that it created on this machine."""
    from aorta.cluster import cluster
    from aorta.cluster.config import ClusterDir

    found = cluster.down(ClusterDir(directory.absolute()), keep_logs)
    say("cluster is down" if found else f"no cluster in {directory}")


@command.command()
@_folder_option
def status(directory: Path) -> int:
    """Show daemons and nodes; the exit code is 0 only if all are up."""
    from rich.console import Console
    from rich.table import Table

    from aorta.cluster import cluster
    from aorta.cluster.config import ClusterDir

    folder = ClusterDir(directory.absolute())
    now = cluster.status(folder)
    if now.record is None:
        say(now.problem or f"no cluster in {directory}; start one with `aorta cluster up`")
        return 1
    known = {node.name: node for node in now.nodes}
    table = Table("daemon", "pid", "process", "node state", "address")
    for process in now.record.processes:
        node = known.get(process.name)
        table.add_row(
            process.name,
            str(process.pid),
            "running" if process.alive else "ended",
            node.state if node else "",
            node.address if node else "",
        )
    Console().print(table)
    if now.problem:
        say(now.problem)
    return 0 if now.up else 1


@command.command()
@_folder_option
def env(directory: Path) -> None:
    """Print shell commands that make Slurm use this cluster, for `eval "$(aorta cluster env)"`."""
    from aorta.cluster.config import ClusterDir, ClusterError

    folder = ClusterDir(directory.absolute())
    if not folder.slurm_conf.exists():
        raise ClusterError(f"no cluster in {directory}", "start one with `aorta cluster up`")
    say(f"export SLURM_CONF={shlex.quote(str(folder.slurm_conf))}")
