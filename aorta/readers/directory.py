"""Finds run directories."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from aorta.artefacts.files import closed, entries, is_file, is_folder, is_there
from aorta.errors import ArtefactError

if TYPE_CHECKING:
    from aorta.artefacts.layout import RunDir

_NO_RUN = "is not a run directory"


def find_run(path: Path) -> RunDir | None:
    """The run directory that `path` is, through links such as `cpu_2node_<JOB_ID>`; None if it is not one."""
    if not is_folder(path):
        return None
    from aorta.artefacts.layout import RunDir  # raw traces need none of its paths

    run = RunDir(path.resolve())
    has_part = is_file(run.manifest) or is_file(run.status) or bool(run.all_records()) or bool(run.nodes())
    named = re.fullmatch(r"run_\w[\w.+-]*", run.root.name) is not None and is_file(run.config)
    return run if has_part or named else None


def holds_runs(path: Path) -> list[Path]:
    """Returns the run directories below a folder of results or of a scenario, sorted."""
    below = [*entries(path), *(run for child in entries(path) for run in entries(child))]
    return sorted(child for child in below if child.name.startswith("run_") and find_run(child))


def runs_in(path: Path) -> list[Path]:
    """Returns the runs of the results or scenario that `path` is, or of results in their usual place."""
    places = (path, path / "profiling", path / "results" / "profiling")
    return next(filter(None, map(holds_runs, places)), [])


def _results_of(run: Path) -> Path:
    """Returns the folder that holds the scenario of `run`."""
    return run.parents[1] if len(run.parts) > 2 else run.absolute().parents[1]


def open_run(path: Path) -> RunDir:
    """`find_run`, insisting.

    Raises:
        ArtefactError: says what was expected and where runs are.
    """
    run = find_run(path)
    if run is not None:
        return run
    reason = closed(path) if is_folder(path) else None
    what = "does not exist" if not is_there(path) else f"cannot be read: {reason}" if reason else _NO_RUN
    inside = runs_in(path)
    hint = (
        f"the folder contains runs; name one, such as {inside[-1]}, or analyse all of them with `aorta "
        f"aggregate {shlex.quote(str(_results_of(inside[-1])))}`"
        if inside
        else "expected results/profiling/<scenario>/run_<JOB_ID> (manifest.json, step records), or traces"
    )
    raise ArtefactError(f"{path} {what}", hint)
