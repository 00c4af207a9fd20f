"""Reads the flight recorders of one job: one recording per rank, and which ranks' dumps cannot be used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aorta.artefacts.analysis import Problem
from aorta.artefacts.flight import Recording
from aorta.errors import ArtefactError
from aorta.readers.flight import HINT, rank_in_name, recording_of

_NUMBER = re.compile(r"\d+")
_DEFAULT = ("0", "default_pg")


@dataclass(frozen=True, slots=True)
class FlightFolder:
    """The flight recorders of one job."""

    recordings: list[Recording]
    """One per rank, in order."""
    problems: list[Problem]
    """Why other files are not used."""
    unread: set[int]
    """Ranks whose dump is there and cannot be used."""


@dataclass(frozen=True, slots=True)
class _Dump:
    """One file."""

    path: Path
    recording: Recording
    written_ns: int

    @property
    def rank(self) -> int:
        """The rank, which is known."""
        assert self.recording.rank is not None
        return self.recording.rank


def read_folder(paths: Sequence[Path]) -> FlightFolder:
    """The recordings in these files.

    Raises:
        ArtefactError: none of the files can be used, or they are of several jobs.
    """
    dumps, problems = [], []
    for path in paths:
        try:
            recording, written_ns = recording_of(path)
            if recording.rank is None:
                raise ArtefactError(f"{path}: neither its name nor its groups show its rank")
            dumps.append(_Dump(path, recording, written_ns))
        except ArtefactError as error:
            problems.append(Problem(file=str(path), reason=error.message))
    if not dumps:
        raise ArtefactError("; ".join(problem.reason for problem in problems), HINT)
    used = _of_one_job(dumps)
    for dump in dumps:
        if dump is not used[dump.rank]:
            reason = f"{dump.path}: another dump of rank {dump.rank}: {used[dump.rank].path} is used"
            problems.append(Problem(file=str(dump.path), reason=reason))
    late_ns = [dump.written_ns - at for dump in dumps if (at := dump.recording.taken_ns) is not None]
    recordings = [_dated(used[rank], late_ns) for rank in sorted(used)]
    return FlightFolder(recordings, problems, _unread(used))


def _of_one_job(dumps: Sequence[_Dump]) -> dict[int, _Dump]:
    """The dump of each rank that counts.

    Files whose names differ in their numbers alone belong together. Where a rank has several such files in
    one folder, as NCCL's and gloo's, the kind counts that tells most.

    Raises:
        ArtefactError: a rank has dumps in several folders, or the ranks are of jobs of different sizes.
    """
    kinds: defaultdict[str, list[_Dump]] = defaultdict(list)
    for dump in dumps:
        kinds[_NUMBER.sub("#", dump.path.name)].append(dump)
    used: dict[int, _Dump] = {}
    for kind in sorted(kinds.values(), key=_worth, reverse=True):
        for dump in kind:
            before = used.setdefault(dump.rank, dump)
            if before is not dump and before.path.parent != dump.path.parent:
                folders = f"{before.path.parent} and {dump.path.parent}"
                raise ArtefactError(
                    f"flight recorders of several jobs: rank {dump.rank} is in {folders}",
                    "name the folder of one of them",
                )
    _check_groups(used)
    return used


def _worth(kind: Sequence[_Dump]) -> tuple[int, int, int]:
    """Order of the files of one kind: ranks with calls, calls, and the newest time."""
    told = [dump for dump in kind if dump.recording.calls]
    calls = sum(len(dump.recording.calls) for dump in told)
    return len({dump.rank for dump in told}), calls, max(dump.written_ns for dump in kind)


def _check_groups(used: Mapping[int, _Dump]) -> None:
    sizes: dict[tuple[int, ...], _Dump] = {}
    for _, dump in sorted(used.items()):
        for group in dump.recording.groups.values():
            if (group.name, group.about) == _DEFAULT and group.ranks:
                sizes.setdefault(group.ranks, dump)
    if len(sizes) > 1:
        said = ", ".join(f"{dump.path} of {len(ranks)} ranks" for ranks, dump in sizes.items())
        raise ArtefactError(
            f"flight recorders of several jobs: {said}", "put the dumps of each job into a separate folder"
        )


def _dated(dump: _Dump, late_ns: Sequence[int]) -> Recording:
    """The recording, taken as long before its file's time as the dumps of other ranks were.

    Copies of files are later than the dumps. The dumps of other ranks can tell how much later.
    """
    recording = dump.recording
    if recording.taken_ns is not None:
        return recording
    if not late_ns:
        return replace(recording, taken_ns=dump.written_ns)
    newest = max((call.created_ns or 0 for call in recording.calls), default=0)
    return replace(recording, taken_ns=max(dump.written_ns - max(min(late_ns), 0), newest))


def _unread(used: Mapping[int, _Dump]) -> set[int]:
    """The ranks that have a file among those that are used, which is none of them."""
    kinds = {(dump.path.parent, _NUMBER.sub("#", dump.path.name)) for dump in used.values()}
    found = set()
    for folder, kind in kinds:
        for path in folder.iterdir():
            rank = rank_in_name(path.name)
            if rank is not None and _NUMBER.sub("#", path.name) == kind:
                found.add(rank)
    return found - set(used)
