"""Commands called as a person calls them, without a process of their own."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner, Result

from aorta import cli
from aorta.errors import AortaError


def run(*words: str) -> Result:
    """What `aorta <words>` printed, and the exception that it ended with."""
    return CliRunner().invoke(cli.group, words, standalone_mode=False)


def refused(*words: str) -> AortaError:
    """The error of ours that `aorta <words>` ends with."""
    error = run(*words).exception
    assert isinstance(error, AortaError), error
    return error


def without_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what a site or a job of Slurm's sets out of the environment."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "AORTA_")):
            monkeypatch.delenv(name)
