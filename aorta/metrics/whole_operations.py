"""The part of a timeline that can be replayed: whole steps, and replicas with all their stages."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.operations import Ints, Operations
from aorta.metrics.operation_graph import lanes
from aorta.units import rank_words

Mask = NDArray[np.bool_]
_FEWEST = 2
"""Whole steps, at least, beside one that is cut."""


def whole_part(job: Operations) -> tuple[Operations, int]:
    """Returns the operations that can be replayed, and how many ranks the job has.

    `Operations.said` lists what is left out: incomplete first or last steps, and replicas without a rank
    that the other replicas have.
    """
    said: list[str] = []
    kept = _whole_steps(job, said)
    replicas, ranks = _whole_replicas(job, said)
    kept &= replicas
    return (_rows(job, kept, said) if said else job), ranks


def _rows(job: Operations, kept: Mask, said: list[str]) -> Operations:
    columns = ("kind", "rank", "replica", "stage", "step", "chunk", "microbatch", "start", "end")
    optional = {
        name: column[kept] for name in ("group", "batch") if (column := getattr(job, name)) is not None
    }
    return replace(
        job,
        **{name: getattr(job, name)[kept] for name in columns},
        **optional,
        said=(*job.said, *said),
    )


def _whole_steps(job: Operations, said: list[str]) -> Mask:
    """Returns the rows of whole steps. A capture cuts its first and its last step."""
    steps = np.unique(job.step)
    kept = np.ones(len(job), dtype=np.bool_)
    if len(steps) <= _FEWEST:
        return kept
    ranks = np.unique(job.rank)
    place = np.searchsorted(ranks, job.rank) * len(steps) + np.searchsorted(steps, job.step)
    counts = np.bincount(place, minlength=len(ranks) * len(steps)).reshape(len(ranks), len(steps))
    usual = np.median(counts, axis=1)[:, None]
    for at in (0, len(steps) - 1):
        if (counts[:, at : at + 1] < usual).any():
            kept &= job.step != steps[at]
            said.append(f"step {steps[at]} is cut off and left out")
    return kept if kept.any() else np.ones(len(job), dtype=np.bool_)


def _whole_replicas(job: Operations, said: list[str]) -> tuple[Mask, int]:
    """Returns the rows of replicas with all their ranks, and how many ranks all replicas would have."""
    places: dict[int, set[tuple[int, int]]] = defaultdict(set)
    lane: Ints = lanes(job)
    for replica, stage, one in np.unique(np.stack((job.replica, job.stage, lane)), axis=1).T.tolist():
        places[replica].add((stage, one))
    every = set[tuple[int, int]]().union(*places.values())
    short = {replica for replica, mine in places.items() if mine != every}
    expected = len(every) * len(places)
    if not short or len(short) == len(places) or job.stages < 2:
        return np.ones(len(job), dtype=np.bool_), expected
    for replica in sorted(short):
        lost = sorted({stage for stage, _ in every - places[replica]})
        stages = f"stage{'s' if len(lost) > 1 else ''} {' and '.join(str(stage) for stage in lost)}"
        there = rank_words(job.replica_ranks(replica))
        said.append(f"replica {replica} ({there}) lacks a rank of {stages} and is not judged")
    return ~np.isin(job.replica, list(short)), expected
