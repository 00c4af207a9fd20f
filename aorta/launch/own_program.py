"""A program of the user's own before it is queued: its interpreter, and overrides that it would not read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.launchers import keeps_hooks_out
from aorta.artefacts.own_program import OwnProgram
from aorta.errors import ConfigError, PlanError
from aorta.launch.container import PYTHON

PROBE_S = 30.0
OLDEST, NEWEST = (3, 10), (3, 14)
"""Versions of Python under which the hooks are known to work."""
OLDEST_TORCH = (2, 6)
_ASK = """
import importlib.util, json, sys
from importlib.metadata import PackageNotFoundError, version
try:
    torch = version("torch") if importlib.util.find_spec("torch") else None
except PackageNotFoundError:
    torch = "unknown"
print(json.dumps([list(sys.version_info[:3]), torch]))
"""
_READ = ("capture", "monitor", "container", "thresholds")
"""Blocks of the configuration that count for every program; a timeout of the launcher is read as well."""
_READ_KEYS = ("distributed.timeout_s",)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and what it says of itself."""

    path: str
    why: str
    """The way in which it was chosen."""
    version: tuple[int, ...] | None = None
    """Its version. None if it did not answer."""
    torch: str | None = None
    """Version of torch. None if it has none."""
    elsewhere: bool = False
    """It is in a container, and is asked when the job starts."""

    def objections(self) -> list[str]:
        """Return why hooks may not work under it."""
        said: list[str] = []
        if self.elsewhere:
            return said
        if self.version is None:
            return [f"{self.path} does not answer"]
        shown = ".".join(map(str, self.version))
        if not OLDEST <= self.version[:2] <= NEWEST:
            said.append(f"Python {shown} is not one of 3.10 to 3.14, which the hooks support")
        if self.torch is None:
            said.append(f"{self.path} has no torch on this machine")
        elif _numbers(self.torch) < OLDEST_TORCH:
            said.append(f"torch {self.torch} is older than 2.6")
        return said


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+", maxsplit=1)[0].split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else OLDEST_TORCH


def ask(path: str, why: str) -> Interpreter:
    """Return what the interpreter at `path` says of itself."""
    try:
        done = subprocess.run(
            [path, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        version, torch = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return Interpreter(path, why)
    return Interpreter(path, why, tuple(version), torch)


def choose_python(
    given: str | None,
    environ: Mapping[str, str],
    asked: Callable[[str, str], Interpreter] = ask,
    which: Callable[[str], str | None] = shutil.which,
) -> Interpreter:
    """Return the interpreter of the user's program.

    It is the one given. Otherwise it is the first of these that has torch: that of the active virtual
    environment, of the active conda environment, `python3` and `python` in PATH, and that of aorta.

    Args:
        given: by `--python`.
        environ: of the shell.
        asked: asks an interpreter.
        which: finds a program in PATH.

    Raises:
        PlanError: what was given is no program.
    """
    if given is not None:
        found = which(given)
        if found is None:
            raise PlanError(f"--python {given}: no such program", "give the path of a Python interpreter")
        return asked(str(Path(found).absolute()), "as asked for")
    candidates = [
        (_inside(environ.get("VIRTUAL_ENV")), "the active virtual environment"),
        (_inside(environ.get("CONDA_PREFIX")), "the active conda environment"),
        (which("python3"), "python3 in PATH"),
        (which("python"), "python in PATH"),
    ]
    tried: set[str] = set()
    for path, why in candidates:
        if path is None or path in tried:
            continue
        tried.add(path)
        answer = asked(path, why)
        if answer.torch is not None:
            return answer
    return asked(sys.executable, "aorta's own Python, because no other Python on this machine has torch")


def inside_container(given: str | None, image: str) -> Interpreter:
    """Return the interpreter of a program that runs in a container.

    Args:
        given: by `--python`, as the image names it.
        image: of the container.
    """
    return Interpreter(given or PYTHON, f"of the container {image}", elsewhere=True)


def _inside(folder: str | None) -> str | None:
    path = Path(folder) / "bin" / "python" if folder else None
    return str(path) if path is not None and os.access(path, os.X_OK) else None


def resolved(own: OwnProgram, command: Sequence[str], interpreter: Interpreter) -> list[str]:
    """Return in words what runs the program, and what its records will show.

    Raises:
        PlanError: steps are to be counted, and nothing counts them.
    """
    if own.steps is not None and own.instrument != "auto":
        raise PlanError("--steps needs the hooks, but --instrument none turns them off", "leave out one")
    said = []
    if starts_python(command):
        said.append(f"python: {interpreter.path} ({interpreter.why})")
    if own.instrument != "auto":
        return [*said, "hooks: none; step records only if the program has a StepRecorder"]
    if starts_python(command):
        said += [f"hooks: {text}; step records may be missing" for text in interpreter.objections()]
    option = keeps_hooks_out(command)
    if option is not None:
        said.append(f"hooks: they will not work, because with {option} Python ignores aorta's sitecustomize")
    else:
        said.append(
            "hooks: steps (optimizers of torch), DataLoader, copies to the GPU, forward, backward, update, "
            "torch.distributed, validation, checkpoints, stacks; other loaders only by their stacks"
        )
    return said


def starts_python(command: Sequence[str]) -> bool:
    """Return whether the agent chooses the interpreter: of a script or a module."""
    return bool(command) and (command[0] == "-m" or command[0].endswith(".py"))


def refuse_idle_overrides(overrides: Sequence[str], command: Sequence[str]) -> None:
    """Refuse overrides that only the built-in trainer reads.

    Raises:
        ConfigError: one of them is such a key.
    """
    for text in overrides if command else ():
        key = text.partition("=")[0]
        if key.partition(".")[0] not in _READ and key not in _READ_KEYS:
            raise ConfigError(
                f"--override {text} has no effect on {command[0]}: only the built-in trainer reads it",
                "pass it to your program as an argument; blocks that apply to every program: {', "
                "'.join(_READ)}",
            )
