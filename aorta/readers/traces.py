"""Reads any traces: files and folders in, one trace per rank out, and what could not be used."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Trace
from aorta.artefacts.files import Unread, is_folder, walk
from aorta.errors import ArtefactError
from aorta.readers import kineto
from aorta.readers.copied import without_copies
from aorta.readers.detect import Format, detect
from aorta.readers.devices import by_device, with_ranks_by_device
from aorta.readers.kineto_merged import holds_several, read_merged
from aorta.readers.sessions import one_session

_TRACE_NAME = re.compile(
    r".*\.pt\.trace\.json(?:\.gz)?|rank[_-]?\d+\.json(?:\.gz)?|.*\.sqlite(?:\.gz)?|.*_kernel_trace\.csv"
    r"|.*_results\.db|.*\.rpd",
    re.IGNORECASE,
)
"""Names that only traces have: such a file of a folder is named where it is not one."""
Source = TypeVar("Source", Path, tuple[Path, ...])

_FORMATS = "expected Kineto JSON, nsys SQLite exports or reports, or rocprofv3 CSV, JSON or rocpd"
_ONE_PER_RANK = "give one trace per rank of one job; a name such as rank3.json shows the rank of a file"


class NoTraceError(ArtefactError):
    """No trace is usable among files; `problems` has one reason per file that was read."""

    def __init__(self, message: str, hint: str, problems: Sequence[Problem]) -> None:
        super().__init__(message, hint)
        self.problems = tuple(problems)


class TraceSet(Struct, frozen=True):
    """Traces by format and rank (each pair once), and the problems of all files."""

    traces: tuple[Trace, ...]
    problems: tuple[Problem, ...]
    files: frozenset[Path] = frozenset()
    """Every file that is a trace or a part of one, used or not."""

    def of_format(self, name: str) -> tuple[Trace, ...]:
        """The traces of one format (`kineto`, `nsys`, `rocprofv3`), by rank."""
        return tuple(trace for trace in self.traces if trace.format == name)


def find(paths: Iterable[Path], problems: list[Problem]) -> dict[Path, Format]:
    """The traces among files and below folders, by content, in the order of their names; other files are
    left out.

    A report with its export beside it counts once, as the export. A file that cannot be read is added to
    `problems`.
    """
    files: dict[Path, bool] = {}
    unread: Unread = []
    for path in paths:
        folder = is_folder(path)
        files |= dict.fromkeys(sorted(walk(path, unread)) if folder else [path], folder)
    problems += [Problem(file=str(path), reason=f"{path}: {reason}") for path, reason in unread]
    found: dict[Path, Format] = {}
    for path, inside in files.items():
        try:
            kind = detect(path)
        except ArtefactError as error:
            problems.append(Problem(file=str(path), reason=error.message))
            continue
        if kind is not None:
            found[path] = kind
        elif inside and _TRACE_NAME.fullmatch(path.name):
            from aorta.readers.unused import why_unused

            problems.append(Problem(file=str(path), reason=f"{path}: not used: {why_unused(path)}"))
    exported = {_stem(path) for path, kind in found.items() if kind == "nsys"}
    return {
        path: kind for path, kind in found.items() if kind != "nsys-report" or _stem(path) not in exported
    }


def _stem(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".gz").rsplit(".", 1)[0])


def read_traces(
    paths: Sequence[Path], *, workers: int | None = None, meanwhile: Callable[[], object] | None = None
) -> TraceSet:
    """Every trace among the files and folders; a file that cannot be used is a problem, not an error.

    Ranks come from the traces. One trace alone without a rank is rank 0; several without, or several of one
    rank at the same time, cannot be told apart and are left out with the reason.

    Raises:
        NoTraceError: nothing of what was given can be used.
    """
    problems: list[Problem] = []
    found = find(paths, problems)
    traces: list[Trace] = []
    for part in _read_all(found, workers, meanwhile):
        if isinstance(part, ArtefactError):
            problems.append(refused_file(part))
        else:
            traces.append(part)
            problems.extend(part.problems)
    traces = with_ranks_by_device(traces)
    usable, refused = told_apart([part for trace in traces for part in by_device(trace, len(traces))])
    problems += refused
    if not usable:
        reasons = "; ".join(problem.reason for problem in problems)
        raise NoTraceError(
            f"{', '.join(map(str, paths))}: {reasons or 'no trace in it'}",
            _ONE_PER_RANK if traces else _FORMATS,
            problems,
        )
    return TraceSet(usable, tuple(problems), frozenset(found))


def refused_file(error: ArtefactError) -> Problem:
    """The problem of a file whose reading ended with an error."""
    return Problem(file=error.message.split(":", 1)[0], reason=error.message)


def _read_all(
    found: dict[Path, Format], workers: int | None, meanwhile: Callable[[], object] | None
) -> list[Trace | ArtefactError]:
    own = [path for path, kind in found.items() if kind == "kineto"]
    merged = [path for path in own if holds_several(path)]
    alone = [path for path in own if path not in merged]
    others = {path: kind for path, kind in found.items() if kind != "kineto"}
    several = [part for path in merged for part in _several(read_merged, path)]
    return [
        *kineto.read_many(alone, workers=workers, meanwhile=meanwhile),
        *several,
        *(_read_others(others) if others else ()),
    ]


def _read_others(found: Mapping[Path, Format]) -> list[Trace | ArtefactError]:
    # To import them takes a good part of the time that a small Kineto trace does.
    from aorta.readers import nsys, rocprof, rocprof_json, rocprof_rocpd

    results: list[Trace | ArtefactError] = []
    groups: defaultdict[str, list[Path]] = defaultdict(list)
    for path, kind in found.items():
        if kind == "rocprof-csv":
            groups[rocprof.group_of(path)].append(path)
        elif kind in ("nsys", "nsys-report"):
            results += _several(nsys.read, path)
        elif kind == "rocprof-json":
            results += _several(rocprof_json.read, path)
        elif kind == "rocpd":
            results += _several(rocprof_rocpd.read, path)
    for group in groups.values():
        results += _several(lambda files: [rocprof.read_csv(files)], tuple(group))
    return results


def _several(read: Callable[[Source], list[Trace]], path: Source) -> list[Trace] | list[ArtefactError]:
    try:
        return read(path)
    except ArtefactError as error:
        return [error]
    except Exception as error:
        # Readers refuse what they can foresee; anything else that a file does costs that file.
        name = path[0] if isinstance(path, tuple) else path
        return [ArtefactError(f"{name}: it could not be read ({type(error).__name__}: {error})")]


def told_apart(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], list[Problem]]:
    """One trace for each format and rank, and why the others are not used."""
    usable: list[Trace] = []
    problems: list[Problem] = []
    formats: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        formats[trace.format].append(trace)
    for every in formats.values():
        group, apart = one_session(every)
        problems += apart
        if len(group) == 1 and group[0].rank is None:
            note = (
                "the trace does not say which rank it is from; it is the only trace, so it counts as rank 0"
            )
            usable.append(replace(group[0], rank=0, notes=(*group[0].notes, note)))
            continue
        ranks: defaultdict[int | None, list[Trace]] = defaultdict(list)
        for trace in group:
            ranks[trace.rank].append(trace)
        for rank, every_one in ranks.items():
            same, copies = without_copies(every_one) if rank is not None else (every_one, [])
            chosen, reason = _choose(rank, same)
            usable += [] if chosen is None else [chosen]
            problems += copies
            problems += [
                Problem(file=trace.source, reason=f"{trace.source}: {reason}")
                for trace in same
                if trace is not chosen
            ]
    return tuple(sorted(usable, key=lambda trace: (trace.format, trace.rank or 0))), problems


def _choose(rank: int | None, same: Sequence[Trace]) -> tuple[Trace | None, str]:
    """The trace to use of several of one rank, and why not the others."""
    if rank is None:
        return None, "neither its content nor its name shows its rank, and there are other traces"
    ordered = sorted(same, key=_span)
    spans = [_span(trace) for trace in ordered]
    if any(before[1] > after[0] for before, after in itertools.pairwise(spans)):
        return None, f"several traces claim to be rank {rank} at the same time"
    return ordered[-1], f"an earlier capture of rank {rank}; the last one is used"


def _span(trace: Trace) -> tuple[int, int]:
    """Start and end on the wall clock where it is known; (0, 0) for a trace with nothing in it."""
    if len(trace.gpu) == 0:
        return 0, 0
    offset = trace.epoch_ns or 0
    return int(trace.gpu.start_ns[0]) + offset, int(trace.gpu.end_ns.max()) + offset
