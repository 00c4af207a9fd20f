"""Describes what a timeline shows, of a run directory or of raw traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aorta.artefacts.events import Trace
from aorta.artefacts.layout import RunDir
from aorta.errors import ArtefactError
from aorta.metrics.alignment import Alignment, align
from aorta.metrics.collectives import step_timelines
from aorta.metrics.trace_capture import TraceCapture, captures
from aorta.metrics.trace_summary import REDUCER, summarise
from aorta.metrics.trace_work import timelines
from aorta.readers.run import RunData, read_run
from aorta.readers.run_identity import boot_epochs, clocks
from aorta.readers.run_traces import read_rank, read_run_traces, trace_files
from aorta.readers.sample_files import find_samples
from aorta.readers.sample_tables import frame_of
from aorta.readers.traces import read_traces
from aorta.report.timeline import Content

Traces = Iterator[tuple[Trace, int]]
"""A trace at a time, with the wall-clock ns of its zero."""


def of_run(run: RunDir) -> tuple[Content, Traces]:
    """The timeline of a run; its traces are read one rank at a time, when they are written.

    Raises:
        ArtefactError: it holds nothing that has a time.
    """
    data, traces = read_run(run, query_accounting=False), read_run_traces(run, REDUCER)
    found = captures(traces.summaries)[0] if traces.summaries else None
    boots = boot_epochs(data)
    epochs = {
        item.rank: item.epoch_ns if item.epoch_ns is not None else boots.get(item.rank)
        for item in (found.ranks if found else ())
    }
    aligned = _aligned(found, epochs) or _aligned_records(data)
    hosts = {rank: steps[-1].host for rank, steps in data.records.by_rank.items()}
    shift = {host: aligned.shift_ns.get(rank, 0) for rank, host in sorted(hosts.items(), reverse=True)}
    starts = [steps[0].wall_start_ns for steps in data.records.by_rank.values()]
    starts += _first_steps(found, epochs)
    starts += [
        int(table["wall_ns"].min()) for table in (data.gpu, data.cpu) if table is not None and len(table)
    ]
    if not starts:
        raise ArtefactError(
            f"{run.root} contains no step record, trace or sample", "there is nothing to put on a timeline"
        )
    # A rank's records may be on another node's clock than the reference: all of a node move together.
    moved = {rank: aligned.shift_ns.get(rank, shift.get(host, 0)) for rank, host in hosts.items()}
    alignment = Alignment({**moved, **aligned.shift_ns}, aligned.basis, aligned.spread_ns)
    content = Content(alignment, shift, data.records.by_rank, data.gpu, data.cpu, min(starts))
    return content, _one_by_one(run, epochs, min(starts))


def of_traces(paths: Sequence[Path]) -> tuple[Content, Traces]:
    """The timeline of raw traces and of the samples beside them; of several formats, of the one analysed.

    Raises:
        ArtefactError: nothing of it is a usable trace.
    """
    read = read_traces(paths)
    found = captures([summarise(trace) for trace in read.traces])[0]
    epochs = {item.rank: item.epoch_ns for item in found.ranks}
    aligned = _aligned(found, epochs) or Alignment(
        {}, "wall clocks as recorded, because there are no collectives in common"
    )
    samples, _ = find_samples(paths)
    # Samples whose zone is unknown have no place.
    tables = {item.kind: frame_of(item.table) for item in samples if not item.zoneless}
    starts = _first_steps(found, epochs) or [0]
    content = Content(aligned, {}, {}, tables.get("gpu"), tables.get("cpu"), min(starts))
    used = read.of_format(found.format)
    return content, ((trace, _epoch(trace, epochs, min(starts))) for trace in used)


def _first_steps(found: TraceCapture | None, epochs: Mapping[int, int | None]) -> list[int]:
    return [
        item.steps[0].start_ns + (epochs[item.rank] or 0)
        for item in (found.ranks if found else ())
        if item.steps and epochs[item.rank] is not None
    ]


def _aligned(found: TraceCapture | None, epochs: Mapping[int, int | None]) -> Alignment | None:
    """Aligns clocks by the traces' collectives; None where traces lack steps in common or clocks."""
    if found is None or len(found.work) < 2 or not found.steps:
        return None
    wall = {rank: epoch for rank, epoch in epochs.items() if epoch is not None and rank in found.work}
    if len(wall) < len(found.work):
        return None
    lines = timelines(found.work)
    return align(lines, {item.rank: item.source for item in found.ranks}, wall)


def _aligned_records(data: RunData) -> Alignment:
    """Aligns clocks by the step records' collectives."""
    by_rank = {rank: steps for rank, steps in data.records.by_rank.items() if steps}
    lines = step_timelines(by_rank)
    if not all(line.starts for line in lines.values()):
        return Alignment({}, "wall clocks as recorded, because the records contain no collectives")
    wall = {rank: steps[0].wall_start_ns - steps[0].mono_start_ns for rank, steps in by_rank.items()}
    return align(lines, clocks(data, by_rank), wall)


def _epoch(trace: Trace, epochs: Mapping[int, int | None], start: int) -> int:
    """The wall-clock ns of a trace's zero; where nothing ties it, the trace begins at `start`."""
    epoch = epochs.get(trace.rank) if trace.rank is not None else None
    if epoch is not None:
        return epoch
    begins = [int(table.start_ns[0]) for table in (trace.gpu, trace.host) if len(table)]
    return start - min(begins, default=0)


def _one_by_one(run: RunDir, epochs: Mapping[int, int | None], start: int) -> Traces:
    for rank, paths in trace_files(run).items():
        if rank not in epochs:
            continue
        trace, _ = read_rank(rank, paths)
        if trace is not None:
            yield trace, _epoch(trace, epochs, start)
