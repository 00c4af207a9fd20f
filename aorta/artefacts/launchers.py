"""Programs that start ranks themselves: one list for the submission and for the agent on a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

STARTED_BY_SCHEDULERS = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "jsrun"})
"""Launchers that ask the scheduler for processes: inside of a job step of aorta they wait for a place."""
PROGRAMS = frozenset({"torchrun", "deepspeed", "accelerate-launch", "horovodrun"}) | STARTED_BY_SCHEDULERS
_MODULES = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"),
        *("accelerate.commands.launch", "deepspeed", "deepspeed.launcher.runner"),
    }
)
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_BEFORE = frozenset({"env", "exec", "nohup", "time", "command"})
"""Programs that only start the words after them."""
_RUNNERS = frozenset({"uv", "poetry", "pipenv"})
"""Programs whose subcommand `run` starts the words after it."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"python[\d.]*")
_TAKE_VALUE = frozenset({"-W", "-X"})
_KEEPS_OUT = re.compile(r"-[a-zA-Z]*?([EIS])[a-zA-Z]*")
"""Options of Python with which it runs no `sitecustomize` from PYTHONPATH; -Eu holds one."""
_CALLS = re.compile(
    r"^[^#\n]*?(?<![\w.-])("
    + "|".join(re.escape(name) for name in sorted(PROGRAMS | _MODULES, key=len, reverse=True))
    + r"|accelerate +launch)(?![\w.-])",
    re.MULTILINE,
)


def launcher(command: Sequence[str]) -> str | None:
    """Return the launcher that the command itself is, as it can be said; None where it is none."""
    words = _started(command)
    if not words:
        return None
    first = Path(words[0]).name
    if first in PROGRAMS:
        return first
    if first == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate launch"
    if _PYTHON.fullmatch(first):
        return _of_python(first, words[1:])
    return _of_python("python", words) if first == "-m" else None


def keeps_hooks_out(command: Sequence[str]) -> str | None:
    """Return the option that keeps Python from running aorta's `sitecustomize`. None if there is none."""
    words = _started(command)
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    options = iter(words[1:])
    for word in options:
        if not word.startswith("-") or word[1:2] in ("", "-", "c", "m"):
            return None
        if word in _TAKE_VALUE:
            next(options, None)
        elif word[:2] not in _TAKE_VALUE and (match := _KEEPS_OUT.fullmatch(word)):
            return f"-{match[1]}"
    return None


def _started(command: Sequence[str]) -> list[str]:
    """Return the command without what only starts it: variables, `env`, `uv run`."""
    words = list(command)
    while words and (Path(words[0]).name in _BEFORE or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if words and Path(words[0]).name in _RUNNERS and words[1:2] == ["run"]:
        words = words[2:]
    return words


def _of_python(python: str, words: list[str]) -> str | None:
    """Return the launcher that an interpreter with these arguments is."""
    while words:
        word, *words = words
        if word == "-m":
            return f"{python} -m {words[0]}" if words and words[0] in _MODULES else None
        if not word.startswith("-"):
            return Path(word).name if Path(word).name in PROGRAMS else launcher_file(word)
        if word in _TAKE_VALUE:
            words = words[1:]
    return None


def launcher_file(path: str) -> str | None:
    """Return the launcher's module where the path is its file, such as `.../torch/distributed/run.py`."""
    name = ".".join(Path(path).with_suffix("").parts[-3:])
    return name if name in _MODULES else None


def called_by_script(command: Sequence[str], folder: Path) -> tuple[str, str] | None:
    """Return the shell script of the command and the launcher that it calls; None where it calls none.

    Args:
        command: such as `bash run.sh`, `./run.sh` or `bash -c "torchrun train.py"`.
        folder: where the command runs.
    """
    words = list(command)
    shell = bool(words) and Path(words[0]).name in _SHELLS
    words = words[1:] if shell else words
    while shell and words and words[0].startswith("-"):
        option, *words = words
        if not option.startswith("--") and "c" in option:
            return _found("the shell command", words[0]) if words else None
        words = words[1:] if option in ("-o", "-O") else words
    if not words or not (shell or words[0].endswith(".sh")):
        return None
    path = folder / words[0]
    if not path.is_file():
        return None
    return _found(words[0], path.read_text(encoding="utf-8", errors="replace"))


def _found(where: str, text: str) -> tuple[str, str] | None:
    match = _CALLS.search(text)
    return (where, match[1]) if match is not None else None
