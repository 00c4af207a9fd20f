"""Finds how a program of the user's own is run and watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnProgram:
    """Says what the command line says of it."""

    instrument: str = "auto"
    """`auto`: hooks record its steps; `none`: it is left alone."""
    python: str | None = None
    """The interpreter that it runs under. None means that of aorta."""
    launcher: str = "aorta"
    """`aorta`: one process per rank is started; `own`: one per node, which starts its ranks itself."""
    steps: int | None = None
    """Optimizer steps after which it is ended; None: when it ends by itself."""

    def arguments(self) -> list[list[str]]:
        """Return it as options of the node agent, without those that have their default."""
        options = {
            "--instrument": self.instrument if self.instrument != "auto" else None,
            "--python": self.python,
            "--launcher": self.launcher if self.launcher != "aorta" else None,
            "--steps": self.steps,
        }
        return [[name, str(value)] for name, value in options.items() if value is not None]


def program_name(command: Sequence[str]) -> str | None:
    """Return the script, the module or the executable of a user's command; None without a command."""
    words = list(command)
    script = next((word for word in words if word.endswith(".py")), None)
    if script is None and "-m" in words[:-1]:
        script = words[words.index("-m") + 1]
    return Path(script or words[0]).name if words else None


AORTAS = OwnProgram()
"""The default of the command line."""
