"""The mesh of a job: its stages, its groups, what makes it slow, and which worker is slow in which step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.mesh import Mesh, MeshCause, SlowdownRecord
from aorta.artefacts.page import WorkerHeat
from aorta.report.blocks import Block, FactList, Line, Paragraph
from aorta.report.tables import Table
from aorta.report.text import ABSENT, number
from aorta.units import rank_words

MAX_WORKERS, MAX_STEPS = 32, 48
"""Rows and columns of the heat map; more are binned."""
TEXT_STEPS = 10
"""Columns of the heat map in text."""
MAX_GROUPS, MAX_CAUSES = 24, 6
CAUSES = {
    "slow_worker": "slow worker",
    "replica_work": "replica with more work",
    "stage_work": "stage with more work",
    "uneven_microbatches": "uneven microbatches",
    "slow_link": "slow link",
}


def worker_heat(found: SlowdownRecord | None, columns: int = MAX_STEPS) -> WorkerHeat | None:
    """Returns workers by steps. None if nothing was replayed, or there is one worker.

    If there are more workers or steps than fit, a cell shows its slowest worker and step. A mean would hide
    one slow worker among many.
    """
    workers = found.by_worker_and_step if found is not None else None
    if workers is None or len(workers.ranks) < 2:
        return None
    values = np.array(workers.values, dtype=np.float64)
    down, across = -(-len(workers.ranks) // MAX_WORKERS), -(-len(workers.steps) // columns)
    rows = [workers.ranks[at : at + down] for at in range(0, len(workers.ranks), down)]
    names = [workers.steps[at : at + across] for at in range(0, len(workers.steps), across)]
    cells = [
        [
            float(values[top * down : (top + 1) * down, left * across : (left + 1) * across].max())
            for left in range(len(names))
        ]
        for top in range(len(rows))
    ]
    note = "S of each worker in each step; 1.00: as fast as if all workers were equal"
    if down > 1 or across > 1:
        note += f". A cell is the slowest of {down} workers and {across} steps"
    return WorkerHeat(
        rows=[_span(row, "rank") for row in rows],
        columns=[_span(name, "") for name in names],
        values=cells,
        note=note,
    )


def _span(numbers: Sequence[int], word: str) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]}".strip()
    return f"{word}s {numbers[0]}–{numbers[-1]}" if word else f"{numbers[0]}–{numbers[-1]}"


def mesh_blocks(analysis: Analysis, *, charts: bool) -> list[Block]:
    """Returns what is known of the mesh; nothing where the job is none.

    Args:
        analysis: of the run.
        charts: the document shows the heat map, so that text does not repeat it.
    """
    mesh, slow = analysis.mesh, analysis.slowdown
    found: list[Block] = []
    facts = [*_pipeline(mesh), *_slowdown(slow)]
    if facts:
        found.append(FactList(tuple(facts)))
    if mesh is not None and mesh.stages:
        found.append(_stages(mesh))
    if mesh is not None and mesh.dimensions:
        found.append(_dimensions(mesh))
    if mesh is not None and mesh.groups:
        found.append(_groups(mesh))
        if len(mesh.groups) > MAX_GROUPS:
            found.append(Paragraph(f"The first {MAX_GROUPS} of {len(mesh.groups)} groups."))
        found += _busiest_peers(mesh)
    if slow is not None and slow.causes:
        found.append(_causes(slow.causes))
    heat = None if charts else worker_heat(slow, TEXT_STEPS)
    if heat is not None:
        rows = tuple(
            (name, *(f"{value:.2f}" for value in cells))
            for name, cells in zip(heat.rows, heat.values, strict=True)
        )
        found += [Paragraph(heat.note + "."), Table(("step", *(f">{name}" for name in heat.columns)), rows)]
    return found


def _pipeline(mesh: Mesh | None) -> list[tuple[str, Line]]:
    if mesh is None or mesh.schedule is None:
        return []
    said: list[tuple[str, Line]] = [
        ("Schedule", f"{mesh.schedule}, {mesh.microbatches} microbatches per step, {len(mesh.stages)} stages")
    ]
    if mesh.bubble is not None:
        ideal = "the ideal bubble of this schedule is not known"
        if mesh.bubble.ideal is not None:
            ideal = f"{100 * mesh.bubble.ideal:.1f} % with equal stages and microbatches"
        said.append(("Bubble", f"{100 * mesh.bubble.measured:.1f} % of the pipeline's time; {ideal}"))
    return said


def _slowdown(slow: SlowdownRecord | None) -> list[tuple[str, Line]]:
    if slow is None:
        return []
    times = f"{number(slow.step_ms)} ms per step, {number(slow.ideal_ms)} ms if all workers were equal"
    said: list[tuple[str, Line]] = [("Slowdown S", f"{slow.value:.3f}: {times}")]
    if slow.worker_share is not None:
        said.append(("M_W", f"the slowest workers explain {slow.worker_share:.2f} of the difference"))
    if slow.stage_share is not None:
        said.append(("M_S", f"the last stage explains {slow.stage_share:.2f} of the difference"))
    return said


def _stages(mesh: Mesh) -> Table:
    rows = tuple(
        (
            f"{one.stage} of {one.of}",
            rank_words(one.ranks),
            number(one.work_ms),
            ABSENT if one.bubble_ratio is None else f"{100 * one.bubble_ratio:.1f} %",
        )
        for one in mesh.stages
    )
    return Table(("stage", "ranks", ">work, ms per step", ">bubble"), rows)


def _dimensions(mesh: Mesh) -> Table:
    rows = tuple(
        (one.dimension, str(one.groups), *_use(one.ms_per_step, one.bytes_per_step))
        for one in mesh.dimensions
    )
    return Table(("dimension", ">groups", ">ms per step and rank", ">MB per step and rank"), rows)


def _use(ms: float | None, size: float | None) -> tuple[str, str]:
    return ABSENT if ms is None else number(ms), ABSENT if size is None else number(size / 1e6)


def _groups(mesh: Mesh) -> Table:
    rows = tuple(
        (
            one.name,
            one.dimension,
            rank_words(one.ranks),
            *_use(one.ms_per_step, one.bytes_per_step),
        )
        for one in mesh.groups[:MAX_GROUPS]
    )
    return Table(("group", "dimension", "ranks", ">ms per step", ">MB per step"), rows)


def _busiest_peers(mesh: Mesh) -> list[Block]:
    """Returns who gets most in the all-to-all of each group; nothing where sizes per peer are not known."""
    known = [(one, np.array(one.bytes_to)) for one in mesh.groups if one.bytes_to is not None]
    rows = []
    for group, sent in known[:MAX_GROUPS]:
        got = sent.sum(axis=0)
        most = np.isclose(got, got.max())
        ranks = [rank for rank, chosen in zip(group.ranks, most.tolist(), strict=True) if chosen]
        share = f"{100 * got.max() / got.sum():.1f} %" if got.sum() else ABSENT
        who = "all alike" if most.all() else rank_words(ranks)
        rows.append((group.name, who, number(got.max() / 1e6), share, f"{100 / len(got):.1f} %"))
    columns = ("group of all-to-all", "gets most", ">MB per step", ">share", ">even share")
    return [Table(columns, tuple(rows))] if rows else []


def _causes(causes: Sequence[MeshCause]) -> Table:
    rows = tuple(
        (
            CAUSES.get(one.cause, one.cause),
            rank_words(one.ranks) if one.ranks else ABSENT,
            ", ".join(str(stage) for stage in one.stages) or ABSENT,
            f"{100 * one.excess:.0f} %",
            number(one.step_ms),
        )
        for one in causes[:MAX_CAUSES]
    )
    return Table(("cause", "ranks", "stages", ">longer by", ">step without it, ms"), rows)
