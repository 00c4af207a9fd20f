"""Finds run directories."""

from __future__ import annotations

import re
from pathlib import Path

from aorta.artefacts.layout import RunDir
from aorta.errors import ArtefactError


def find_run(path: Path) -> RunDir | None:
    """The run directory that `path` is, through links such as `cpu_2node_<JOB_ID>`; None if it is not one."""
    if not path.is_dir():
        return None
    run = RunDir(path.resolve())
    has_part = run.manifest.is_file() or run.status.is_file() or bool(run.all_records()) or bool(run.nodes())
    named = re.fullmatch(r"run_\w[\w.+-]*", run.root.name) is not None and run.config.is_file()
    return run if has_part or named else None


def holds_runs(path: Path) -> list[Path]:
    """Returns the run directories below a folder of results or of a scenario, sorted."""
    found = (child for level in ("run_*", "*/run_*") for child in path.glob(level))
    return sorted(filter(find_run, found)) if path.is_dir() else []


def open_run(path: Path) -> RunDir:
    """`find_run`, insisting.

    Raises:
        ArtefactError: says what was expected and where runs are.
    """
    run = find_run(path)
    if run is not None:
        return run
    what = "does not exist" if not path.exists() else "is not a run directory"
    inside = holds_runs(path)
    hint = (
        f"it holds runs; name one, such as {inside[-1]}, or take all with `aorta aggregate`"
        if inside
        else "expected results/profiling/<scenario>/run_<JOB_ID>, which holds manifest.json or step records"
    )
    raise ArtefactError(f"{path} {what}", hint)
