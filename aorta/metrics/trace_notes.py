"""Notes on the traces behind a breakdown, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from aorta.artefacts.measured import BreakdownTable, RankBreakdown
from aorta.metrics.blame import BlameTable, charge_notes
from aorta.metrics.trace_capture import TraceCapture
from aorta.units import plural, rank_words

_CLAUSE = re.compile(r"; |, (?=on the GPU )")
"""Separates the clauses about where steps come from."""
DIFFERENT_PCT = 10.0
"""A note is added if two sources give shares of the step for one part that differ by more than this many
points.
"""
_PARTS: Mapping[str, Callable[[RankBreakdown], float]] = {
    "compute": lambda row: row.compute_ms,
    "exposed communication": lambda row: row.exposed_comm_ms,
    "loading": lambda row: row.data_wait_ms,
}


def size_notes(found: TraceCapture, expected: int | None, *, assumed: bool) -> list[str]:
    """Returns a note if it is not known how many ranks there are."""
    if assumed:
        last = found.ranks[-1].rank
        return [f"the traces do not say how many ranks there are; ranks 0 to {last} are taken as all ranks"]
    return ["the traces do not say how many ranks there are"] if found.ranks and expected is None else []


def differences(records: BreakdownTable, rows: Sequence[RankBreakdown]) -> list[str]:
    """Returns the parts of the step that records and traces put far apart, at their largest difference."""
    by_rank: Mapping[int, RankBreakdown] = {row.rank: row for row in records.per_rank}
    notes = []
    for name, part in _PARTS.items():
        pairs = [
            (
                row.rank,
                100.0 * part(by_rank[row.rank]) / by_rank[row.rank].step_ms,
                100.0 * part(row) / row.step_ms,
            )
            for row in rows
            if row.rank in by_rank and by_rank[row.rank].step_ms > 0 and row.step_ms > 0
        ]
        rank, by_records, by_traces = max(
            pairs, key=lambda item: abs(item[1] - item[2]), default=(0, 0.0, 0.0)
        )
        if abs(by_records - by_traces) > DIFFERENT_PCT:
            notes.append(
                f"sources differ: {name} of rank {rank} is {by_records:.0f} % of a step according to its "
                f"records and {by_traces:.0f} % according to its trace, which the breakdown uses"
            )
    return notes


def notes_of(found: TraceCapture, charged: BlameTable | str, expected: int | None) -> list[str]:
    """Returns what a reader must know of the traces."""
    alike: dict[str, list[str]] = {}
    for summary in found.ranks:
        for note in summary.notes:
            alike.setdefault(re.sub(r"\d+", "#", note), []).append(note)
    notes = [
        same[0] + (f" (and {len(same) - 1} more like this)" if len(same) > 1 else "")
        for same in alike.values()
    ]
    notes += _basis_note({rank: item.steps.basis for rank, item in sorted(found.work.items())})
    notes += charge_notes(charged, expected, "collective")
    if isinstance(charged, str):
        return notes
    edges = sum(item.edge_calls for item in found.work.values())
    if edges:
        kernels = plural(edges, "communication kernel")
        notes.append(f"{kernels} at the edges of the captures, outside of whole steps: not charged")
    return notes


def _basis_note(bases: Mapping[int, str]) -> list[str]:
    """Returns what the ranks' steps are; what is said of some ranks alone comes last, with those."""
    clauses = {rank: _CLAUSE.split(basis) for rank, basis in bases.items()}
    if not clauses:
        return []
    every = dict.fromkeys(clause for mine in clauses.values() for clause in mine)
    of = {clause: [rank for rank, mine in clauses.items() if clause in mine] for clause in every}
    common = [clause for clause in every if len(of[clause]) == len(clauses)]
    some: dict[tuple[int, ...], list[str]] = {}
    for clause in every:
        if clause not in common:
            some.setdefault(tuple(of[clause]), []).append(clause)
    said = [", ".join(common)] if common else []
    said += [f"of {rank_words(list(ranks))}: {', '.join(words)}" for ranks, words in some.items()]
    return [f"steps are {'; '.join(said)}"]
