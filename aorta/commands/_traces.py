"""Raw traces analysed: what `analyze` does with anything that is no run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aorta.artefacts.analysis import Analysis, Problem
from aorta.errors import ArtefactError

if TYPE_CHECKING:
    from aorta.artefacts.reduction import TraceSummary
    from aorta.readers.ahead import Ahead
    from aorta.readers.traces import NoTraceError
    from aorta.readers.unpacked import Unpacked


def analyze_traces(paths: Sequence[Path], overrides: Sequence[str] = ()) -> Analysis:
    """Read and analyse the traces and samples among files and folders; as `read_and_analyze`."""
    return read_and_analyze(paths, overrides)[0]


def read_and_analyze(
    paths: Sequence[Path], overrides: Sequence[str] = (), ahead: Ahead | None = None
) -> tuple[Analysis, Sequence[TraceSummary]]:
    """The analysis of the traces and samples among files and folders, and the summaries that it is of.

    Args:
        paths: files and folders.
        overrides: of thresholds.
        ahead: unpacks some of the files. None if nothing does.

    Raises:
        ArtefactError: nothing of it is a usable trace.
    """
    from aorta.metrics.trace_summary import REDUCER
    from aorta.readers.operation_files import find_operations
    from aorta.readers.sample_files import find_samples
    from aorta.readers.summarised import read_summaries
    from aorta.readers.traces import NoTraceError
    from aorta.readers.unpacked import unpacked

    with unpacked(paths) as files:
        if (recorded := _recordings(files)) is not None:
            return recorded, ()
        if timelines := find_operations(files.paths):
            try:
                return _of_operations(files, timelines), ()
            except ArtefactError as error:
                # A damaged table costs itself where other files were named.
                if not set(files.paths) - set(timelines):
                    raise
                files.give_up(timelines, error)
        samples, problems = find_samples(files.paths)
        known = {*(item.path for item in samples), *(Path(item.file) for item in problems if item.file)}
        try:
            found = read_summaries(files.paths, REDUCER, _import_the_rest, ahead)
        except NoTraceError as error:
            raise _nothing(files, error, problems, known, bool(samples)) from None
        known |= {Path(item.file) for item in found.problems if item.file}
        known |= {Path(summary.source) for summary in found.summaries}
        unused = _unused(files, known | found.files)
        summaries = [_named(files, summary) for summary in found.summaries]
    from aorta.diagnosis.analyse import analyse_traces

    said = list(dict.fromkeys((*found.problems, *problems, *files.problems, *unused)))
    return analyse_traces(summaries, samples, _named_problems(files, said), overrides), summaries


def _import_the_rest() -> None:
    """Import what the analysis and its report need: other processes read meanwhile."""
    from aorta.diagnosis import analyse  # noqa: F401
    from aorta.report import bare, terminal  # noqa: F401


def _recordings(files: Unpacked) -> Analysis | None:
    """Returns the analysis of the flight recorders among the files; None where there is none, or a trace."""
    from aorta.readers.flight_files import find as find_recordings

    found = find_recordings(files.paths)
    if not found:
        return None
    from aorta.diagnosis.analyse_recordings import analyse_recordings
    from aorta.readers.flight_folder import read_folder
    from aorta.readers.traces import find

    if find([path for path in files.paths if path not in found], []):
        return None
    folder = read_folder(found)
    return analyse_recordings(folder.recordings, _named_problems(files, folder.problems), folder.unread)


def _of_operations(files: Unpacked, timelines: Sequence[Path]) -> Analysis:
    """Returns the analysis of the one timeline of operations.

    Raises:
        ArtefactError: there are several, of which each is a job of its own.
    """
    from aorta.diagnosis.analyse_operations import analyse_operations
    from aorta.readers.operations import read_operations

    if len(timelines) > 1:
        names = ", ".join(files.named(str(path)) for path in timelines)
        raise ArtefactError(f"several timelines of operations: {names}", "name one of them")
    return analyse_operations(read_operations(timelines[0]), files.named(str(timelines[0])))


def _named(files: Unpacked, summary: TraceSummary) -> TraceSummary:
    """Returns the summary with the names of packed files instead of temporary places."""
    problems = _named_problems(files, summary.problems)
    return msgspec.structs.replace(summary, source=files.named(summary.source), problems=problems)


def _named_problems(files: Unpacked, problems: Sequence[Problem]) -> list[Problem]:
    return [
        Problem(file=item.file and files.named(item.file), reason=files.named(item.reason))
        for item in problems
    ]


def _unused(files: Unpacked, known: set[Path]) -> list[Problem]:
    """Returns why each named file is of no use that is neither read nor among the problems."""
    unknown = [
        path
        for path in files.paths
        if path not in known
        and not (path.is_dir() and any(path in one.parents for one in known | files.opened))
    ]
    if not unknown:
        return []
    from aorta.readers.unused import why_unused

    return [Problem(file=str(path), reason=f"{path}: not used: {why_unused(path)}") for path in unknown]


def _nothing(
    files: Unpacked, error: NoTraceError, problems: Sequence[Problem], known: set[Path], samples: bool
) -> ArtefactError:
    """Returns the error that says of every named file why no trace was read from it."""
    if samples:
        message = (
            "there are only samples of GPUs and nodes, without a trace: samples do not show why a GPU waits"
        )
        return ArtefactError(message, "also name the traces of the same run, or name a run directory")
    known = known | {Path(item.file) for item in error.problems if item.file}
    every = (*files.problems, *error.problems, *problems, *_unused(files, known))
    reasons = list(dict.fromkeys(item.reason for item in every))
    return ArtefactError(files.named("; ".join(reasons) or error.message), error.hint)
