"""Raw traces, each read and summarised by one process: only summaries travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import (
    Trace,
    TracedCollectives,
    TraceRanges,
    build,
    take,
)
from aorta.artefacts.reduction import Reducer, TraceSummary
from aorta.errors import ArtefactError
from aorta.readers import kineto
from aorta.readers.ahead import Ahead
from aorta.readers.devices import by_device
from aorta.readers.kineto_merged import holds_several
from aorta.readers.parallel import by_copies, one_each
from aorta.readers.traces import find, read_traces, refused_file, told_apart

_WORTH_A_COPY = 100_000
"""Events of a trace; the summary of fewer is made sooner than a process is copied."""


class SummarySet(Struct, frozen=True):
    """Summaries of traces by format and rank, and the problems of all files."""

    summaries: tuple[TraceSummary, ...]
    problems: tuple[Problem, ...]
    files: frozenset[Path]
    """Every file that is a trace or a part of one, used or not."""


class _FileRead(Struct, frozen=True):
    """A file's traces without their events, which tell sessions and ranks apart, and their summaries."""

    outlines: list[Trace]
    summaries: list[TraceSummary]
    problems: tuple[Problem, ...]


def read_summaries(
    paths: Sequence[Path],
    reducer: Reducer,
    meanwhile: Callable[[], object] | None = None,
    ahead: Ahead | None = None,
) -> SummarySet:
    """The summary of every trace among files and folders; otherwise as `read_traces`.

    Args:
        paths: files and folders.
        reducer: makes the summary of a trace whose rank is known.
        meanwhile: done by this process while others read.
        ahead: unpacks some of the files.

    Raises:
        NoTraceError: as `read_traces`.
    """
    problems: list[Problem] = []
    found = find(paths, problems)
    # Processes can be copied when no thread runs any more.
    texts = ahead.texts() if ahead is not None else {}
    if set(found.values()) == {"kineto"} and one_each(len(found)):
        read = by_copies(partial(_read, reducer, len(found), texts), list(found), meanwhile=meanwhile)
        made = _joined(read, problems)
        if made is not None:
            return SummarySet(made[0], tuple(made[1]), frozenset(found))
        meanwhile = None
    traces = read_traces(paths, meanwhile=meanwhile)
    return SummarySet(_summaries(reducer, traces.traces), traces.problems, traces.files)


def _summaries(reducer: Reducer, traces: Sequence[Trace]) -> tuple[TraceSummary, ...]:
    """The summary of each trace; of few traces, several processes share the work on one."""
    count = len(reducer.parts)
    tasks = [(part, trace) for trace in traces for part in reducer.parts]
    small = len(traces) == 1 and _events(traces[0]) < _WORTH_A_COPY
    made = by_copies(lambda task: task[0](task[1]), tasks, workers=1 if small else None)
    return tuple(reducer.joined(made[first : first + count]) for first in range(0, len(made), count))


def _events(trace: Trace) -> int:
    return len(trace.gpu) + len(trace.host) + len(trace.operators)


def _read(
    reducer: Reducer, files: int, texts: Mapping[Path, bytes], path: Path
) -> _FileRead | ArtefactError | None:
    """Returns what a file holds; None where it takes all files to tell which rank it is."""
    if holds_several(path, texts.get(path)):
        return None
    trace = kineto.read_many([path], workers=1, texts=texts)[0]
    if isinstance(trace, ArtefactError):
        return trace
    parts = by_device(trace, files)
    if any(part.rank is None for part in parts):
        return None
    return _FileRead(
        [_outline(part) for part in parts], [reducer.summarise(part) for part in parts], trace.problems
    )


def _outline(trace: Trace) -> Trace:
    """The trace with no more than the events that begin first and end last."""
    gpu = trace.gpu
    edges = [0, int(np.argmin(gpu.start_ns)), int(np.argmax(gpu.end_ns))] if len(gpu) else []
    return replace(
        trace,
        gpu=take(gpu, np.unique(np.array(edges, dtype=np.intp))),
        collectives=build(TracedCollectives, 0),
        host=build(TraceRanges, 0),
        gpu_ranges=build(TraceRanges, 0),
        operators=build(TraceRanges, 0),
        names=(),
        unseen=(),
    )


def _joined(
    read: Sequence[_FileRead | ArtefactError | None], problems: Sequence[Problem]
) -> tuple[tuple[TraceSummary, ...], list[Problem]] | None:
    """The summaries to use, and all problems; None where files have to be read together."""
    said = list(problems)
    outlines: list[Trace] = []
    by_outline: dict[int, TraceSummary] = {}
    for part in read:
        if part is None:
            return None
        if isinstance(part, ArtefactError):
            said.append(refused_file(part))
            continue
        said += part.problems
        outlines += part.outlines
        by_outline.update(zip(map(id, part.outlines), part.summaries, strict=True))
    usable, refused = told_apart(outlines)
    if not usable or any(id(outline) not in by_outline for outline in usable):
        return None
    return tuple(by_outline[id(outline)] for outline in usable), [*said, *refused]
