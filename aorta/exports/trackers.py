"""A run to MLflow or to Weights & Biases, one function each. Both packages are optional extras."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.files import is_file, read_regular
from aorta.artefacts.io import read_json, write_bytes, write_json, write_text
from aorta.artefacts.layout import RunDir
from aorta.errors import ArtefactError, PlanError
from aorta.exports.frames import load, summary

MOST_POINTS = 1000
"""Points of a series of steps; a longer run is thinned evenly."""
_MOST_OF_A_CALL = 500
_LONGEST_TAG = 500


def to_mlflow(run: str | Path, *, tracking_uri: str | None = None, experiment: str = "aorta") -> str:
    """Returns the id of the MLflow run that this one was written to: parameters, metrics, steps, files.

    Args:
        run: a run directory that was analysed.
        tracking_uri: server or folder; None: MLflow's own choice, such as MLFLOW_TRACKING_URI.
        experiment: its name; it is made where it does not exist.

    Raises:
        ArtefactError: the run was not analysed.
        PlanError: MLflow is not installed, or refuses the run.
    """
    analysis = _analysis(run)
    mlflow = _imported("mlflow", "mlflow")
    try:
        return _written(mlflow, run, analysis, tracking_uri, experiment)
    except mlflow.exceptions.MlflowException as error:
        raise PlanError(
            f"MLflow refuses the run: {str(error).strip().splitlines()[0]}",
            "name a server or a folder: --tracking-uri file:mlruns",
        ) from error


def _written(
    mlflow: ModuleType, run: str | Path, analysis: Analysis, tracking_uri: str | None, experiment: str
) -> str:
    """Write the run, and return its id."""
    if tracking_uri is not None and (tracking_uri.startswith("file:") or "://" not in tracking_uri):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a word of consent
    client = mlflow.MlflowClient(tracking_uri=tracking_uri)
    known = client.get_experiment_by_name(experiment)
    where = known.experiment_id if known is not None else client.create_experiment(experiment)
    tags = {
        "mlflow.runName": _name(analysis),
        **{k: str(v)[:_LONGEST_TAG] for k, v in _words(analysis).items()},
    }
    made = client.create_run(where, tags=tags)
    found: str = made.info.run_id
    entities = mlflow.entities
    started = (analysis.started_wall_ns or 0) // 1_000_000
    metrics = [entities.Metric(key, value, started, 0) for key, value in _metrics(analysis).items()]
    metrics += [
        entities.Metric("train_step_ms", value, wall_ns // 1_000_000, step)
        for step, wall_ns, value in step_series(run)
    ]
    params = [entities.Param(key, str(value)) for key, value in (analysis.settings or {}).items()]
    client.log_batch(found, params=params[:100])
    for first in range(0, len(metrics), _MOST_OF_A_CALL):
        client.log_batch(found, metrics=metrics[first : first + _MOST_OF_A_CALL])
    with tempfile.TemporaryDirectory(prefix="aorta-") as folder:
        for path in _copies(run, analysis, Path(folder)):
            client.log_artifact(found, str(path))
    client.set_terminated(found)
    return found


def to_wandb(
    run: str | Path, *, folder: str | Path = ".", project: str = "aorta", mode: str = "offline"
) -> Path:
    """Returns the folder that W&B wrote this run to; `wandb sync FOLDER` sends an offline one.

    Args:
        run: a run directory that was analysed.
        folder: gets the folder `wandb`.
        project: of W&B.
        mode: `offline` sends nothing; `online` needs an account.

    Raises:
        ArtefactError: the run was not analysed.
        PlanError: W&B is not installed.
    """
    analysis = _analysis(run)
    if mode == "offline":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B would send errors of its own
    wandb = _imported("wandb", "wandb")
    made = wandb.init(
        project=project,
        name=_name(analysis),
        dir=str(folder),
        mode=mode,
        config=dict(analysis.settings or {}),
        tags=[analysis.verdict.kind],
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True),
        reinit="finish_previous",
    )
    for step, wall_ns, value in step_series(run):
        made.log({"train_step_ms": value, "wall_ns": wall_ns}, step=step)
    made.summary.update({**_metrics(analysis), **_words(analysis)})
    artifact = wandb.Artifact(_name(analysis), type="aorta-run")
    with tempfile.TemporaryDirectory(prefix="aorta-") as copies:
        for path in _copies(run, analysis, Path(copies)):
            artifact.add_file(str(path))  # W&B copies it at once
        made.log_artifact(artifact)
    where = Path(made.dir).parent
    made.finish()
    wandb.teardown()  # its service writes the file, and may do so after `finish`
    return where


def step_series(run: str | Path) -> list[tuple[int, int, float]]:
    """Returns (global step, its end in ns since the epoch, mean of the ranks' step times in ms), thinned."""
    steps = load(run).steps
    if not len(steps):
        return []
    grouped = steps.groupby("global_step").agg(
        wall_end_ns=("wall_end_ns", "max"), step_ms=("step_ms", "mean")
    )
    every = -(-len(grouped) // MOST_POINTS)
    thin = grouped.iloc[::every]
    return [
        (int(step), int(wall), float(value))
        for step, wall, value in zip(thin.index, thin["wall_end_ns"], thin["step_ms"], strict=True)
    ]


def _analysis(run: str | Path) -> Analysis:
    path = RunDir(Path(run)).analysis
    if not is_file(path):
        raise ArtefactError(
            f"{run} was not analysed: it has no {path.name}", f"run aorta analyze {run} first"
        )
    return read_json(path, Analysis)


def _imported(module: str, extra: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PlanError(f"{module} is not installed: {error}", f"pip install 'aorta[{extra}]'") from error


def _name(analysis: Analysis) -> str:
    return "-".join(part for part in ("aorta", analysis.scenario, analysis.job_id) if part)


def _metrics(analysis: Analysis) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in summary(analysis).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _words(analysis: Analysis) -> Mapping[str, Any]:
    said = {"verdict": analysis.verdict.kind, "statement": analysis.verdict.statement}
    said |= {"scenario": analysis.scenario or "", "job_id": analysis.job_id or ""}
    if analysis.submitted is not None and analysis.submitted.commit:
        said["commit"] = analysis.submitted.commit
    return said


def _copies(run: str | Path, analysis: Analysis, folder: Path) -> list[Path]:
    """Copy the files that people open into `folder`, secrets masked, and return the copies.

    A link is left out: it would send a file that is not the run's.
    """
    here = RunDir(Path(run))
    made = [folder / here.analysis.name]
    write_json(made[0], analysis)
    reports = [here.root / f"profiling_report.{kind}" for kind in ("txt", "html")]
    for path in (here.config, *reports, here.root / "profiling_analysis.png"):
        if path.is_symlink() or not is_file(path):
            continue
        data = read_regular(path)
        if path.suffix == ".png":
            write_bytes(folder / path.name, data)
        else:
            write_text(folder / path.name, data.decode("utf-8", "replace"))
        made.append(folder / path.name)
    return made
