"""Finds which folders below the results are old and aorta's own, and how they are removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.files import absent, is_folder
from aorta.artefacts.layout import RunDir, Scenario, flat_alias, job_output, runs
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir, submissions
from aorta.commands._inventory import last_change_ns, own_manifest
from aorta.commands._owned import (
    REPORT,
    RUN,
    SUBMISSION,
    is_own_folder,
    own_bytes,
)
from aorta.commands._removal import Clearing, held, reason, taken_beside
from aorta.commands._reports import FAMILIES, kept_reports
from aorta.errors import ArtefactError
from aorta.launch.submitted import read_jobs

_MARKS = {"manifest.json", "jobs.jsonl", *(f"{name}.json" for name in FAMILIES)}


@dataclass(frozen=True, slots=True)
class Old:
    """A folder that may go."""

    results: Path
    root: Path
    words: str
    names: re.Pattern[str]
    """Paths below it that aorta writes."""
    beside: tuple[Path, ...] = ()
    """Files that aorta wrote for it beside the folder."""

    @property
    def size(self) -> int:
        """Bytes that this user's files in it take."""
        return own_bytes(self.root)

    def writes(self, path: str) -> bool:
        """Returns True if aorta writes a file of this path below the folder."""
        return self.names.fullmatch(path) is not None


def old_folders(results: Path, before_ns: int) -> list[Old]:
    """The folders below `results` that aorta made and in which nothing changed since `before_ns`."""
    found = [old for scenario, run in runs(results) if (old := _run(results, scenario, run)) is not None]
    found = [old for old in found if last_change_ns(old.root) < before_ns]
    going = {old.root.resolve() for old in found}
    for submission in submissions(results):
        if _is_over(submission, going) and last_change_ns(submission.root) < before_ns:
            beside = _never_started(results, submission)
            found.append(Old(results, submission.root, "submission", SUBMISSION, beside))
    reports = {report.folder for report in kept_reports(results)}
    found += [
        Old(results, folder, "earlier report", REPORT)
        for folder in sorted(reports)
        if last_change_ns(folder) < before_ns
    ]
    return [old for old in found if is_own_folder(results, old.root)]


def beyond(found: list[Old], results: Path, keep_bytes: int) -> tuple[list[Old], int]:
    """Returns the oldest of `found` that have to go, and this user's bytes that stay below `results`."""
    total = own_bytes(results)
    going: list[Old] = []
    for old in sorted(found, key=lambda old: last_change_ns(old.root)):
        if total <= keep_bytes:
            break
        size = old.size
        if size:
            going.append(old)
            total -= size
    return going, total


def _run(results: Path, scenario: Scenario, run: RunDir) -> Old | None:
    manifest = own_manifest(run)
    if manifest is None or manifest.scenario != scenario.name:
        return None
    alias = flat_alias(results, scenario, manifest.job_id)
    linked = alias.is_symlink() and alias.resolve() == run.root.resolve()
    beside = [job_output(results, scenario.name, manifest.job_id), *([alias] if linked else [])]
    return Old(results, run.root, f"run of {scenario.name}", RUN, tuple(beside))


def _is_over(submission: SubmissionDir, going: set[Path]) -> bool:
    """True if the record can be read and each of its jobs has no run any more, or one that goes."""
    try:
        jobs = read_jobs(submission)
    except ArtefactError:
        return False
    return all(_is_gone(job, going) for job in jobs)


def _never_started(results: Path, submission: SubmissionDir) -> tuple[Path, ...]:
    """Return the empty folders of its jobs, as far as they are below these results."""
    home = results.resolve()
    folders = [Path(job.run_dir) for job in read_jobs(submission)]
    below = [folder.resolve() for folder in folders if _is_empty(folder)]
    return tuple(results / folder.relative_to(home) for folder in below if folder.parent.parent == home)


def _is_gone(job: SubmittedJob, going: set[Path]) -> bool:
    root = Path(job.run_dir)
    return root.resolve() in going or absent(root) or _is_empty(root)


def _is_empty(folder: Path) -> bool:
    """True if it is the folder of a job that never started."""
    try:
        return is_folder(folder) and not folder.is_symlink() and not any(folder.iterdir())
    except OSError:
        return False


def remove(old: Old) -> Iterator[str]:
    """Remove what aorta wrote, then the folders that are empty; gives what stays, and why.

    The record, by which the folder is known as aorta's, goes last, and stays as long as anything does. The
    folder is held open meanwhile: what is put in its place is not entered.
    """
    try:
        with held(old.results, old.root.parent) as above, held(old.results, old.root) as folder:
            if os.fstat(folder).st_uid != os.geteuid():
                yield f"{old.root}: it now belongs to another user"
                return
            stay = Clearing(old.writes, _MARKS.__contains__).cleared(folder, old.root)
            if not stay:
                stay = Clearing(old.writes, lambda _: False).cleared(folder, old.root)
            if not stay:
                os.rmdir(old.root.name, dir_fd=above)
    except (OSError, ValueError) as error:
        stay = [f"{old.root}: {reason(error)}"]
    if not stay:
        stay = [why for path in old.beside if (why := taken_beside(old.results, path)) is not None]
    yield from stay
