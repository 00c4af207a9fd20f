"""A timeline of operations to an observation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aorta.artefacts.analysis import DataQuality, Problem, RunFacts
from aorta.artefacts.measured import BreakdownTable
from aorta.artefacts.operations import Operations
from aorta.diagnosis.observation import Observation, ObservedJob, ObservedSteps
from aorta.metrics.mesh import breakdowns, mesh_of
from aorta.metrics.whole_operations import whole_part


def from_operations(job: Operations, name: str, problems: Sequence[Problem] = ()) -> Observation:
    """Returns what the operations of a job show.

    Args:
        job: its operations.
        name: of the file.
        problems: what was wrong with other files.
    """
    job, expected = whole_part(job)
    found, ranks = mesh_of(job), len(np.unique(job.rank))
    steps = len(np.unique(job.step))
    notes = [] if found.why_not is None else [f"no slowdown: {found.why_not}"]
    return Observation(
        job=ObservedJob(world_size=expected, ranks_missing=ranks < expected),
        steps=ObservedSteps(
            breakdown=BreakdownTable(steps=steps, per_rank=breakdowns(job)),
            blame_absent="a timeline of operations is judged by a replay",
            costs_absent="a timeline does not show what the workers do between operations",
            source="operations",
            files=(name,),
        ),
        mesh=found,
        facts=RunFacts(world_size=expected),
        quality=DataQuality(
            ranks_expected=expected,
            ranks_seen=ranks,
            sources=[f"{name} ({len(job)} operations of {ranks} ranks, {steps} steps)"],
            problems=[*problems, *(Problem(file=name, reason=said) for said in (*job.said, *_fewer(job)))],
            steady_steps=steps,
            notes=notes,
            ranks_assumed=job.sizes.pipeline is None,
        ),
    )


def _fewer(job: Operations) -> list[str]:
    """Returns what to say where the job has more stages than the file."""
    said, seen = job.sizes.pipeline, len(np.unique(job.stage[job.stage >= 0]))
    if said is None or not 0 < seen < said:
        return []
    return [
        f"the timeline contains {seen} of {said} stages: other stages are not judged; give the timeline of "
        "the whole job"
    ]
