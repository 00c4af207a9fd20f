"""Monitor samples inside a traced window, if clocks and GPUs can be matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aorta.artefacts.measured import RankBreakdown, Utilization
from aorta.artefacts.sample_table import joined
from aorta.metrics.trace_capture import TraceCapture
from aorta.metrics.trace_summary import counted
from aorta.metrics.utilization import Window, effective_gpu_utilization, sampled, utilization
from aorta.metrics.zones import zone_offset
from aorta.units import plural

if TYPE_CHECKING:
    from aorta.artefacts.sample_table import SampleTable
    from aorta.readers.sample_files import SampleFile


_GPU = ("hostname", "node_index", "gpu_uuid", "gpu_id")
"""Columns that tell a GPU, or without the last two a node."""


def sampled_beside(
    found: TraceCapture, samples: Sequence[SampleFile], rows: list[RankBreakdown]
) -> tuple[Utilization | None, list[str]]:
    """Returns what was sampled while the steps of a capture ran, and why samples were not used."""
    used = [item for item in found.ranks if item.rank in found.work]
    spans = [
        (step.start_ns + item.epoch_ns, step.end_ns + item.epoch_ns)
        for item in used
        if item.epoch_ns is not None
        for step in counted(item, found.steps)
    ]
    window = None
    if found.steps and all(item.epoch_ns is not None for item in used):
        window = min(start for start, _ in spans), max(end for _, end in spans)
    return capture_utilization(samples, window, effective_gpu_utilization(rows), len(found.work))


def capture_utilization(
    samples: Sequence[SampleFile], window: Window | None, effective_pct: float | None, ranks: int
) -> tuple[Utilization | None, list[str]]:
    """Means and peaks of the samples in the window, and why samples were not used.

    Args:
        samples: files of samples.
        window: the traced steps in wall-clock ns; None where a trace's clock is not tied to it.
        effective_pct: effective GPU utilisation by the traces.
        ranks: GPUs that the samples may show: of more, it is not known which ones are the job's.
    """
    notes: list[str] = []
    tables: dict[str, list[SampleTable]] = {"gpu": [], "cpu": []}
    for item in samples:
        moved = _on_wall_clock(item, window)
        if isinstance(moved, str):
            notes.append(f"{item.path.name} is not used: {moved}")
        else:
            tables[item.kind].append(moved)
    gpu, cpu = (_joined(tables[kind]) for kind in ("gpu", "cpu"))
    if gpu is not None:
        shown = int(gpu.groups(_GPU).max()) + 1
        if shown != ranks:
            notes.append(
                f"samples show {plural(shown, 'GPU')}, the traces {plural(ranks, 'rank')}: it is not known "
                "which GPUs belong to the traces, so GPU samples are not used"
            )
            gpu = None
    hosts = {str(name) for table in (gpu, cpu) if table is not None for name in table.texts["hostname"]}
    if window is None and not samples and effective_pct is None:
        return None, notes
    windows = dict.fromkeys(hosts, window) if window is not None else {}
    known = {host: span for host, span in windows.items() if span is not None}
    return utilization(sampled(known, gpu, cpu), effective_pct), notes


def _on_wall_clock(item: SampleFile, window: Window | None) -> SampleTable | str:
    if window is None:
        return "the clock of the traces cannot be matched with the wall clock"
    wall = item.table.wall_ns
    if not item.zoneless:
        return item.table
    offset = zone_offset((int(wall.min()), int(wall.max())), window)
    return offset if isinstance(offset, str) else item.table.earlier(offset)


def _joined(tables: Sequence[SampleTable]) -> SampleTable | None:
    """One table; the same sample in two files, such as a node's part and the merged one, counts once."""
    return joined(tables, (*_GPU, "wall_ns")) if tables else None
