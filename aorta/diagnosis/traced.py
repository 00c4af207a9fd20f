"""Steps, host and replay of a capture, which `from_traces` completes to an observation."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from aorta.artefacts.analysis import Problem
from aorta.artefacts.measured import BreakdownTable
from aorta.diagnosis.model import modelled
from aorta.diagnosis.observation import Observation, ObservedHost, ObservedSteps
from aorta.diagnosis.rank import rank_costs, with_own_waits
from aorta.metrics.blame import BlameTable, charged, within_idle
from aorta.metrics.expert_load import traced_load
from aorta.metrics.mesh_groups import groups_in
from aorta.metrics.peer_bytes import with_peers
from aorta.metrics.trace_capture import ALONE, TraceCapture, with_waits
from aorta.metrics.trace_notes import notes_of
from aorta.units import NS_PER_MS

SOURCE = "usable traces"
"""The source that the ranks left, in words."""


def traced(
    found: TraceCapture, expected: int | None, nodes: Mapping[int, str], names: Mapping[int, str]
) -> tuple[Observation, list[Problem]]:
    """Returns the steps, the host and the replay of traces, and why ranks have none.

    Args:
        found: the traces.
        expected: ranks of the job.
        nodes: each rank's node.
        names: each rank's host by the records, for traces that do not name it.
    """
    rows, unusable = found.breakdown_rows()
    collectives = found.collectives(expected)
    charges = charged(collectives, found.steps, ALONE)
    waits = charges if isinstance(charges, BlameTable) else None
    if waits is not None:
        idle = {row.rank: round((row.step_ms - row.compute_ms) * NS_PER_MS) * waits.steps for row in rows}
        waits = within_idle(waits, idle)
    rows = [structs.replace(row, host=row.host or names.get(row.rank)) for row in with_waits(rows, waits)]
    costs = rank_costs(rows, waits)
    shown = with_own_waits(rows, costs)
    steps = ObservedSteps(
        between_shares=found.between_shares(rows),
        between_ms=found.between_ms(),
        between_inside=True,
        breakdown=BreakdownTable(steps=len(found.steps), per_rank=shown, timing=found.format),
        costs=costs,
        waits=waits,
        blame_absent=charges if isinstance(charges, str) else None,
        unseen=tuple(found.unseen_times()),
        of_capture=found.short,
        traced=True,
        loader_absent=None if found.loader_marked else "no trace marks a loader",
        source=SOURCE,
        exchanged=traced_load(found.work, found.steps),
        files=found.sources,
        notes=tuple(notes_of(found, charges, expected)),
    )
    model = modelled(collectives, found.steps, [row.step_ms for row in rows], nodes, found.host_ns())
    host = ObservedHost(idle=found.idle())
    groups = with_peers(groups_in(collectives, len(found.steps)), found.work, found.steps)
    return Observation(steps=steps, host=host, model=model, groups=groups), unusable
