"""Turns a timeline of operations into an `Analysis`."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Analysis, Problem
from aorta.artefacts.operations import Operations
from aorta.diagnosis.from_operations import from_operations
from aorta.diagnosis.judge import judge
from aorta.diagnosis.policy import Policy


def analyse_operations(job: Operations, name: str, problems: Sequence[Problem] = ()) -> Analysis:
    """Returns metrics, findings and verdict of a timeline of operations.

    Args:
        job: its operations.
        name: of the file.
        problems: what was wrong with other files.
    """
    return judge(from_operations(job, name, problems), Policy.of(traced=True))
