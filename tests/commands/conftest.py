"""What the tests of commands share."""

from __future__ import annotations

import pytest

from aorta.launch import tools
from tests.support.slurm import FakeSlurm, cluster


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A stand-in for Slurm, which answers instead of its programs."""
    fake = cluster()
    monkeypatch.setattr(tools, "call", fake)
    return fake
