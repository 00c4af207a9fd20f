"""Turns flight recorders into an `Analysis`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, Problem, RunFacts
from aorta.artefacts.flight import Recording
from aorta.diagnosis.hang import hang_of_recordings
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation, ObservedJob, ObservedSteps
from aorta.diagnosis.policy import Policy
from aorta.metrics.standstill import why_none


def analyse_recordings(recordings: Sequence[Recording], problems: Sequence[Problem] = ()) -> Analysis:
    """Returns the ranks that hold up the job of these flight recorders; the recorders' ranks must be known.

    Args:
        recordings: one per rank.
        problems: what was wrong with other files.
    """
    members = {rank for item in recordings for group in item.groups.values() for rank in group.ranks}
    size = max(members, default=-1) + 1 or None
    seen = Observation(
        job=ObservedJob(world_size=size or len(recordings), known=False),
        steps=ObservedSteps(source="flight recorders"),
        facts=RunFacts(world_size=size, hang=hang_of_recordings(recordings)),
        quality=DataQuality(
            ranks_expected=size,
            ranks_seen=len(recordings),
            sources=["flight recorders"],
            problems=list(problems),
        ),
    )
    made = judge(seen, Policy.of(traced=True))
    if seen.facts.hang is not None:
        return made
    why = f"{why_none(recordings)} Speed is not measured by flight recorders."
    return msgspec.structs.replace(made, verdict=msgspec.structs.replace(made.verdict, statement=why))
