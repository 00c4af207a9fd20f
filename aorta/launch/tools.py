"""Calls Slurm's programs with argument lists, a time limit, and an environment without stray options."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aorta.artefacts.slurm_environment import clean_environment

TIMEOUT_S = 60.0
"""A controller that does not answer in this time counts as not answering."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """Answer of a program."""

    code: int | None
    """Exit status. None if it is not installed or did not answer in time."""
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        """It ran and ended well."""
        return self.code == 0

    @property
    def complaint(self) -> str:
        """The program's message about a failure, in one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return "; ".join(lines) if lines else f"exit status {self.code} and no message"


Caller = Callable[[Sequence[str]], ToolAnswer]
"""Runs one program. The tests' stand-in refuses programs that it does not know."""


def call(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> ToolAnswer:
    """Run `argv` in a clean environment and wait for its answer; never raises for what the program does."""
    try:
        done = subprocess.run(
            list(argv),
            env=clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        return ToolAnswer(None, err=f"{argv[0]} is not installed here")
    except OSError as error:
        return ToolAnswer(None, err=f"{argv[0]} cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ToolAnswer(None, err=f"{argv[0]} did not answer within {timeout_s:.0f} s")
    return ToolAnswer(done.returncode, done.stdout, done.stderr)
