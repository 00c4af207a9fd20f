"""What the tests of node agents share."""

from __future__ import annotations

import pytest

from tests.support.agents import Job


@pytest.fixture
def job(tmp_path):
    """A job of agents, which end with the test."""
    job = Job(tmp_path)
    yield job
    for agent in job.agents:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
