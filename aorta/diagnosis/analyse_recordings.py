"""Turns flight recorders into an `Analysis`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, Problem, RunFacts
from aorta.artefacts.flight import Recording
from aorta.artefacts.hang import Hang
from aorta.diagnosis.hang import hang_of_recordings
from aorta.diagnosis.judge import judge
from aorta.diagnosis.observation import Observation, ObservedJob, ObservedSteps
from aorta.diagnosis.policy import Policy
from aorta.metrics.standstill import why_none


def analyse_recordings(
    recordings: Sequence[Recording], problems: Sequence[Problem] = (), unread: Collection[int] = ()
) -> Analysis:
    """Returns the ranks that hold up the job of these flight recorders; the recorders' ranks must be known.

    Args:
        recordings: one per rank.
        problems: what was wrong with other files.
        unread: ranks whose dump cannot be used.
    """
    members = {rank for item in recordings for group in item.groups.values() for rank in group.ranks}
    size = max(members, default=-1) + 1 or None
    seen = Observation(
        job=ObservedJob(world_size=size or len(recordings), known=False),
        steps=ObservedSteps(source="flight recorders"),
        facts=RunFacts(world_size=size, hang=hang_of_recordings(recordings, unread)),
        quality=DataQuality(
            ranks_expected=size,
            ranks_seen=len(recordings),
            sources=["flight recorders"],
            problems=list(problems),
        ),
    )
    made = judge(seen, Policy.of(traced=True))
    why = f"{why_none(recordings, unread)} Flight recorders do not measure speed."
    if seen.facts.hang is not None:
        why = made.verdict.statement + _maybe_in_a_send(seen.facts.hang, recordings)
    return msgspec.structs.replace(made, verdict=msgspec.structs.replace(made.verdict, statement=why))


def _maybe_in_a_send(hang: Hang, recordings: Sequence[Recording]) -> str:
    """Says that the recorder cannot tell a host that is stuck from one that waits in a send."""
    guilty = {item.rank for item in hang.ranks if item.kind == "host_stuck"}
    if any(item.unseen_sends for item in recordings if item.rank in guilty):
        return " gloo does not record sends and receives: the rank may be waiting in one."
    return ""
