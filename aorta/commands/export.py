"""`aorta export`: a run to MLflow or W&B, and the schemas of all files."""

from __future__ import annotations

from pathlib import Path

import click

from aorta.commands._groups import SuggestingGroup
from aorta.commands._say import say


@click.group("export", cls=SuggestingGroup)
def command() -> None:
    """Export a run to MLflow or W&B, or the JSON schemas of all files."""


@command.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--tracking-uri", metavar="URI", help="Server or folder. Default: MLFLOW_TRACKING_URI.")
@click.option("--experiment", default="aorta", show_default=True)
def mlflow(run: Path, tracking_uri: str | None, experiment: str) -> None:
    """Write RUN, after it was analysed, to MLflow."""
    from aorta.exports.trackers import to_mlflow

    say(f"MLflow run {to_mlflow(run, tracking_uri=tracking_uri, experiment=experiment)}")


@command.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--project", default="aorta", show_default=True)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder in which wandb/ is created.",
)
@click.option("--online", is_flag=True, help="Send the run at once; needs an account.")
def wandb(run: Path, project: str, folder: Path, online: bool) -> None:
    """Write RUN, after it was analysed, for W&B; without --online, nothing is sent."""
    from aorta.exports.trackers import to_wandb

    made = to_wandb(run, folder=folder, project=project, mode="online" if online else "offline")
    say(f"W&B: {made}")


@command.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def schemas(folder: Path) -> None:
    """Write the JSON schema of each file that aorta writes into FOLDER."""
    from aorta.exports.schemas import write_schemas

    say(f"{len(write_schemas(folder))} schemas in {folder}")
