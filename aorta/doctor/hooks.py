"""Tests the hooks of `aorta.inject` by running a program with an interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import aorta
from aorta.artefacts import names
from aorta.doctor.records import Check
from aorta.errors import PlanError
from aorta.launch.own_program import choose_python

NAME = "hooks"
PATIENCE_S = 120.0
_PROGRAM = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def examine_hooks(python: str) -> Check:
    """Run four steps of a tiny program under `python` with the hooks, and see what they recorded."""
    try:
        found = choose_python(python, os.environ)
    except PlanError as error:
        return Check(NAME, "missing", error.message, error.hint)
    objections = found.objections()
    shown = f"{found.path}: Python {'.'.join(map(str, found.version or ()))}, torch {found.torch}"
    if found.version is None or found.torch is None:
        return Check(NAME, "missing", "; ".join(objections), "give the Python of your training environment")
    with tempfile.TemporaryDirectory() as folder:
        said = _run(found.path, Path(folder))
        records = Path(folder) / "rank_0_metrics.jsonl"
        steps = len(records.read_text().splitlines()) if records.is_file() else 0
    if steps:
        return Check(
            NAME,
            "note" if objections else "ok",
            f"{shown}: steps are recorded",
            "; ".join(objections),
        )
    return Check(NAME, "missing", f"{shown}: nothing was recorded", said[-300:].strip())


def _run(python: str, folder: Path) -> str:
    """The program's standard error."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("AORTA_")}
    hooks = Path(aorta.__file__).parent / "inject" / "site"
    env |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(hooks), env.get("PYTHONPATH")))),
        names.INSTRUMENT: "auto",
        names.RUN_DIR: str(folder),
        names.CAPTURE: json.dumps({"warmup_steps": 0}),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr
