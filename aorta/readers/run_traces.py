"""The traces that a run directory holds: reduced in the job, and read back for the analysis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec import field
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Trace
from aorta.artefacts.files import changed_ns, is_file, size_of, walk
from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import NodeDir, RunDir
from aorta.artefacts.records import SCHEMA_VERSION, Manifest, Record
from aorta.artefacts.reduction import Reducer, Reduction, TraceSummary
from aorta.errors import ArtefactError
from aorta.readers.parallel import Pool, side_by_side, usable_cores
from aorta.readers.trace_build import file_rank
from aorta.readers.traces import read_traces

_POOL_BYTES = 8 << 20
"""Files smaller than this together are read sooner than processes start."""
_MOST_BYTES = 128 << 20
"""Summaries that are analysed whole; of more together, as many of the last steps as that much holds. In
memory a summary's timeline takes several times what its file does."""
_FEWEST_STEPS = 10
"""Minimum number of steps that are analysed, however large the summaries are."""
_PRIVATE = "private"
"""A folder of what is not to be shared; nothing in it is a trace to read."""


@dataclass(frozen=True, slots=True)
class RunTraces:
    """The traces of a run, one summary per rank, and what could not be used."""

    summaries: tuple[TraceSummary, ...]
    problems: tuple[Problem, ...]
    from_summaries: bool
    """All were reduced before; none was read as a trace."""
    notes: tuple[str, ...] = ()
    """Notes on what was left out of them."""


class _Number(Record, frozen=True, kw_only=True):
    number: int


class _Numbers(Record, frozen=True, kw_only=True):
    """The steps' numbers of a summary, and nothing else."""

    whole: bool
    steps: list[_Number]


class _Sizes(Record, frozen=True, kw_only=True):
    """The sizes of a summary's files, and nothing else."""

    sizes: dict[str, int] = field(default_factory=dict)


def trace_files(run: RunDir) -> dict[int, list[Path]]:
    """The files of each rank's trace, by the rank in their names or, for the run's own folders, in the
    folder's; files of no rank are left out.
    """
    found: defaultdict[int, list[Path]] = defaultdict(list)
    for root in (run.nsys, run.torch_profiler, run.rocprof):
        for path in sorted(walk(root)):
            if _PRIVATE not in path.relative_to(root).parts and path.name[0] != ".":
                rank = file_rank(path)
                if rank is None and path.parent != root:
                    rank = file_rank(path.parent)
                if rank is not None:
                    found[rank].append(path)
    return {rank: _once(found[rank]) for rank in sorted(found)}


def _once(paths: Sequence[Path]) -> list[Path]:
    """A torch.profiler trace that was kept for TensorBoard and for Chrome is one trace."""
    boards = {path.parent for path in paths if ".pt.trace.json" in path.name}
    return [path for path in paths if ".pt.trace.json" in path.name or path.parent not in boards]


def reduce_run(run: RunDir, reducer: Reducer, node: int | None = None) -> Iterator[tuple[NodeDir, Reduction]]:
    """Write a summary of each rank's trace, of one node or of all; yields each node when it is done.

    Args:
        run: the run directory.
        reducer: makes the summaries.
        node: its number. None means all nodes.

    Raises:
        ArtefactError: the run does not say which ranks the node has.
        OSError: a summary cannot be written.
    """
    files, homes = trace_files(run), _homes(run)
    if node is not None and node not in homes.values():
        raise ArtefactError(
            f"{run.root}: it is not known which ranks run on node {node}",
            hint="manifest.json lists the nodes of a run, counted from 0",
        )
    for index in [node] if node is not None else sorted(set(homes.values()) or {0}):
        ranks = [rank for rank in files if homes.get(rank, 0) == index]
        folder, done, problems = run.node(index), [], list[Problem]()
        for summary, found in _summaries([(rank, files[rank]) for rank in ranks], reducer):
            problems += found
            if summary is not None:
                write_json(folder.trace_summary(summary.rank), summary)
                done.append(summary.rank)
        made = Reduction(node_index=index, ranks=done, problems=problems)
        if ranks:
            write_json(folder.reduction, made)
        yield folder, made


def _homes(run: RunDir) -> dict[int, int]:
    """Rank to node index, by the manifest; ranks follow the nodes."""
    try:
        nodes = sorted(read_json(run.manifest, Manifest).nodes, key=lambda info: info.node_index)
    except ArtefactError:
        return {}
    homes: dict[int, int] = {}
    for info in nodes:
        homes.update(dict.fromkeys(range(len(homes), len(homes) + max(info.processes, 0)), info.node_index))
    return homes


def _summaries(
    groups: Sequence[tuple[int, list[Path]]], reducer: Reducer
) -> Iterator[tuple[TraceSummary | None, list[Problem]]]:
    """The summary of each rank's files, one rank per process; none at once in memory.

    Not in batches, as many small files are read: a trace takes minutes, and one alone is read by all cores.
    """
    size = sum(size_of(path) for _, paths in groups for path in paths)
    if usable_cores() < 2 or len(groups) < 2 or size < _POOL_BYTES:
        yield from (_summary(group, reducer) for group in groups)
        return
    with Pool() as pool:
        yield from pool.processes.map(partial(_summary, reducer=reducer, workers=1), groups)


def _summary(
    group: tuple[int, list[Path]], reducer: Reducer, workers: int | None = None
) -> tuple[TraceSummary | None, list[Problem]]:
    trace, problems = read_rank(*group, workers=workers)
    if trace is None:
        return None, problems
    own = set(trace.problems)
    made = msgspec.structs.replace(reducer.summarise(trace), sizes=_sizes(group[1]))
    return made, [problem for problem in problems if problem not in own]


def _sizes(paths: Sequence[Path]) -> dict[str, int]:
    return {path.name: size_of(path) for path in paths}


def read_rank(
    rank: int, paths: Sequence[Path], *, workers: int | None = None
) -> tuple[Trace | None, list[Problem]]:
    """One rank's trace in its files, or why there is none; of several, the one with the most GPU events.

    Args:
        rank: whose files they are.
        paths: of `trace_files`.
        workers: processes to read with at most.
    """
    try:
        found = read_traces(paths, workers=workers)
    except ArtefactError as error:
        return None, [Problem(file=str(paths[0]), reason=error.message)]
    trace = max((_ranked(trace, rank) for trace in found.traces), key=lambda item: len(item.gpu))
    if trace.rank != rank:
        reason = f"its content says rank {trace.rank}, but it is in the place of rank {rank}"
        return None, [*found.problems, Problem(file=trace.source, reason=reason)]
    return trace, list(found.problems)


def _ranked(trace: Trace, rank: int) -> Trace:
    """The trace with the rank whose folder it lies in, where it does not name one itself."""
    return replace(trace, rank=rank, rank_basis="folder") if trace.rank_basis is None else trace


def read_run_traces(run: RunDir, reducer: Reducer) -> RunTraces:
    """One summary per rank: as the job reduced it, or, without or where it is older, from the trace itself.

    Of summaries that are larger together than can be analysed, the last common steps are read.
    """
    summaries: dict[int, TraceSummary] = {}
    problems: list[Problem] = []
    files, reduced = trace_files(run), _reduced(run)
    current = {rank: path for rank, path in reduced.items() if not _outdated(path, files.get(rank, ()))}
    numbers, notes = _counted(current)
    keyed = [((rank, numbers), path) for rank, path in current.items()]
    for read in side_by_side(partial(_read_one, reducer), keyed):
        if isinstance(read, Problem):
            problems.append(read)
        else:
            summaries[read.rank] = read
    for _, node in run.nodes():
        if is_file(node.reduction):
            try:
                problems += read_json(node.reduction, Reduction).problems
            except ArtefactError as error:
                problems.append(Problem(file=str(node.reduction), reason=error.message))
    left = [(rank, paths) for rank, paths in files.items() if rank not in summaries]
    for (rank, _), (summary, found) in zip(left, _summaries(left, reducer), strict=True):
        problems += found
        if summary is not None:
            try:
                summaries[summary.rank] = summary if numbers is None else reducer.latest(summary, numbers)
            except ArtefactError as error:
                problems.append(Problem(file=summary.source, reason=error.message))
        elif rank in reduced and rank not in current:
            old = _read_one(reducer, ((rank, numbers), reduced[rank]))
            if isinstance(old, Problem):
                problems.append(old)
            else:
                summaries[rank] = old
                notes += (
                    f"{reduced[rank].name} is older than the trace, which cannot be read on this machine",
                )
    ordered = tuple(_here(summaries[rank], run.root) for rank in sorted(summaries))
    # What the job could not reduce cannot be read now either: it is said once.
    whole = bool(ordered) and not left
    return RunTraces(ordered, tuple(dict.fromkeys(problems)), from_summaries=whole, notes=notes)


def _outdated(summary: Path, files: Sequence[Path]) -> bool:
    """True if the summary is older than the files. Times do not survive every copy of a run, sizes do."""
    made = changed_ns(summary)
    newer = [path for path in files if made < changed_ns(path)]
    if not newer:
        return False
    try:
        return read_json(summary, _Sizes).sizes != _sizes(files)
    except ArtefactError:  # which is said when it is read
        return False


def _counted(paths: Mapping[int, Path]) -> tuple[frozenset[int] | None, tuple[str, ...]]:
    """The steps to read of the ranks' summaries, and a note. None means all."""
    size = sum(map(size_of, paths.values()))
    if size <= _MOST_BYTES:
        return None, ()
    # Their numbers alone are decoded in a 500th of the time of the whole: sooner than processes start.
    found = [numbers for path in paths.values() if (numbers := _numbers(path))]
    common = sorted(frozenset.intersection(*found)) if found else []
    count = max(len(common) * _MOST_BYTES // size, _FEWEST_STEPS)
    if count >= len(common):
        return None, ()
    note = (
        f"of {len(common)} traced steps of all ranks, only the last {count} are analysed, because the "
        f"summaries are {size / 2**20:,.0f} MiB together"
    )
    return frozenset(common[-count:]), (note,)


def _numbers(path: Path) -> frozenset[int]:
    """The numbers of a summary's whole steps; none where it cannot be read, which is said when it is."""
    try:
        found = read_json(path, _Numbers)
    except ArtefactError:
        return frozenset()
    return frozenset(step.number for step in found.steps) if found.whole else frozenset()


def _read_one(
    reducer: Reducer, item: tuple[tuple[int, frozenset[int] | None], Path]
) -> TraceSummary | Problem:
    (rank, numbers), path = item
    try:
        return _read(path, rank, numbers, reducer)
    except ArtefactError as error:
        return Problem(file=str(path), reason=error.message)


def _here(summary: TraceSummary, root: Path) -> TraceSummary:
    """Returns it with the place of its file where the run is now."""
    parts = Path(summary.source).parts
    if root.name not in parts:
        return summary
    below = parts[len(parts) - parts[::-1].index(root.name) :]
    return msgspec.structs.replace(summary, source=str(root.joinpath(*below)))


def _reduced(run: RunDir) -> dict[int, Path]:
    """The summaries of all nodes, by rank."""
    found: dict[int, Path] = {}
    for _, node in run.nodes():
        found.update(node.trace_summaries())
    return found


def _read(path: Path, rank: int, numbers: frozenset[int] | None, reducer: Reducer) -> TraceSummary:
    summary = read_json(path, TraceSummary)
    if summary.schema_version > SCHEMA_VERSION:
        raise ArtefactError(
            f"{path}: schema version {summary.schema_version}; this aorta knows {SCHEMA_VERSION}",
            hint="a newer version of aorta reduced it; update this installation",
        )
    if summary.rank != rank:
        raise ArtefactError(f"{path}: it is the summary of rank {summary.rank}")
    try:
        if numbers is not None:
            return reducer.latest(summary, numbers)
        reducer.check(summary)
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error.message}") from error
    return summary
