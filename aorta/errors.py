"""One small tree of errors; every message ends with what to do."""

from __future__ import annotations


class AortaError(Exception):
    """Base of every error that a user may see.

    Args:
        message: what is wrong, naming the file, key or line.
        hint: what to do about it; shown on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ConfigError(AortaError):
    """A configuration file or override is wrong; the message names the dotted key."""

    exit_code = 2


class PlanError(AortaError):
    """A job that cannot work was refused before submission."""

    exit_code = 2


class SubmitError(AortaError):
    """The scheduler refused a job; jobs accepted before stay recorded."""

    exit_code = 3


class SchedulerError(AortaError):
    """The scheduler could not be asked, or its answer could not be read."""

    exit_code = 3


class ArtefactError(AortaError):
    """A file of a run is missing, broken or of an unknown version."""

    exit_code = 4


class RunError(AortaError):
    """Something failed inside the job, on a node."""

    exit_code = 5


class FaultError(AortaError):
    """An unexpected error, which is a bug in aorta."""
