"""Submissions as they are on disk: light to import, for commands that look and submit nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from aorta.artefacts.files import Unread, is_file, own_first, read_regular
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir, submissions
from aorta.artefacts.sweep import Sweep
from aorta.errors import ArtefactError

_MOST_BYTES, _MOST_WRONG = 64 << 20, 100
"""The limits of a list of jobs: its bytes, and its lines that are no jobs."""


def read_jobs(
    submission: SubmissionDir, skipped: Callable[[str], None] = lambda _: None
) -> list[SubmittedJob]:
    """The jobs of a submission, in the order of acceptance.

    Args:
        submission: whose record is read.
        skipped: told each line that is left out, and why: it is torn, or its names cannot be part of a path.

    Raises:
        ArtefactError: there is no such record, or no line of it can be read.
    """
    try:
        lines = read_regular(submission.jobs, _MOST_BYTES).splitlines()
    except OSError as error:
        raise ArtefactError(
            f"{submission.jobs}: {error.strerror}", "name a folder results/profiling/run_<timestamp>"
        ) from error
    jobs, wrong = [], []
    for number, line in enumerate(lines, start=1):
        try:
            job = msgspec.json.decode(line, type=SubmittedJob)
            RunDir.of(Path(), Scenario(job.scenario), job.job_id)
        except (msgspec.DecodeError, UnicodeDecodeError, ArtefactError) as error:
            wrong.append(f"{submission.jobs}, line {number} is left out: {error}")
            if len(wrong) > _MOST_WRONG:
                wrong.append(f"{submission.jobs}: the lines after {number} are left out")
                break
        else:
            jobs.append(job)
    if wrong and not jobs:
        raise ArtefactError(wrong[0])
    for message in wrong:
        skipped(message)
    return jobs


def newest_submission(results: Path, unread: Unread | None = None) -> SubmissionDir:
    """The newest submission below `results` that has jobs.

    Args:
        results: the base results directory.
        unread: gets the folders that this user may not look into.

    Raises:
        ArtefactError: there is none.
    """
    for submission in map(
        SubmissionDir, reversed(own_first([item.root for item in submissions(results, unread)]))
    ):
        if is_file(submission.jobs):
            return submission
    raise ArtefactError(
        f"there is no submission below {results}",
        "submit with `aorta submit`, or name the folder of a submission",
    )


def read_sweep(submission: SubmissionDir) -> Sweep:
    """The points of a sweep, with the ids of their jobs.

    Raises:
        ArtefactError: this submission is no sweep, or its record is broken.
    """
    return read_json(submission.sweep, Sweep)
