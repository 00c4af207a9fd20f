"""Which folders below the results are old and aorta's own, and how they are removed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.files import entries, is_file, is_folder, size_of, walk
from aorta.artefacts.layout import RunDir, Scenario, SubmissionDir, flat_alias, job_output, runs, submissions
from aorta.artefacts.records import SubmittedJob
from aorta.commands._inventory import last_change_ns, own_manifest
from aorta.commands._reports import FAMILIES, kept_reports
from aorta.errors import ArtefactError
from aorta.launch.submitted import read_jobs

_RUN_FILES = re.compile(
    r"(manifest|session|status|planned|injected|profiling_analysis|rank_\d+_instrument)\.json"
    r"|config\.yaml|job\.sbatch|(metrics|gpu_monitor|cpu_monitor)\.csv|rank_\d+_metrics\.jsonl"
    r"|sacct_summary\.txt|job_metadata\.txt|profiling_report\.(txt|html)|profiling_analysis\.(png|svg)"
)
_RUN_FOLDERS = re.compile(r"nodes|nsys|rocprof|torch_profiler|checkpoints|attempt_\d+|earlier_\w+")
_SUBMISSION_FILES = re.compile(r"job_ids\.txt|jobs\.jsonl|sweep\.json|[\w-]+\.(yaml|sbatch)")
_SUBMISSION_FOLDERS = re.compile(r"points|local")
_REPORT_FILES = re.compile("|".join(rf"{name}\.(md|json|html)" for name in FAMILIES))
_REPORT_FOLDERS = re.compile("|".join(FAMILIES.values()))


@dataclass(frozen=True, slots=True)
class Old:
    """A folder that may go."""

    root: Path
    words: str
    files: re.Pattern[str]
    folders: re.Pattern[str]
    beside: tuple[Path, ...] = ()
    """What aorta wrote beside the folder for it."""

    @property
    def size(self) -> int:
        """Bytes of the files in it."""
        return sum(size_of(path) for path in walk(self.root) if is_file(path))


def old_folders(results: Path, before_ns: int) -> list[Old]:
    """The folders below `results` that aorta made and in which nothing changed since `before_ns`."""
    found = [old for scenario, run in runs(results) if (old := _run(results, scenario, run)) is not None]
    found = [old for old in found if last_change_ns(old.root) < before_ns]
    going = {old.root.resolve() for old in found}
    for submission in submissions(results):
        if _is_over(submission, going) and last_change_ns(submission.root) < before_ns:
            beside = _never_started(submission)
            found.append(Old(submission.root, "submission", _SUBMISSION_FILES, _SUBMISSION_FOLDERS, beside))
    reports = {report.folder for report in kept_reports(results)}
    found += [
        Old(folder, "earlier report", _REPORT_FILES, _REPORT_FOLDERS)
        for folder in sorted(reports)
        if last_change_ns(folder) < before_ns
    ]
    return [old for old in found if _is_own(old.root)]


def _run(results: Path, scenario: Scenario, run: RunDir) -> Old | None:
    manifest = own_manifest(run)
    if manifest is None or manifest.scenario != scenario.name:
        return None
    alias = flat_alias(results, scenario, manifest.job_id)
    linked = alias.is_symlink() and alias.resolve() == run.root.resolve()
    beside = [job_output(results, scenario.name, manifest.job_id), *([alias] if linked else [])]
    return Old(run.root, f"run of {scenario.name}", _RUN_FILES, _RUN_FOLDERS, tuple(beside))


def _is_over(submission: SubmissionDir, going: set[Path]) -> bool:
    """True if the record can be read and each of its jobs has no run any more, or one that goes."""
    try:
        jobs = read_jobs(submission)
    except ArtefactError:
        return False
    return all(_is_gone(job, going) for job in jobs)


def _never_started(submission: SubmissionDir) -> tuple[Path, ...]:
    return tuple(Path(job.run_dir) for job in read_jobs(submission) if _is_empty(Path(job.run_dir)))


def _is_gone(job: SubmittedJob, going: set[Path]) -> bool:
    root = Path(job.run_dir)
    return root.resolve() in going or not root.exists() or _is_empty(root)


def _is_empty(folder: Path) -> bool:
    """True if it is the folder of a job that never started."""
    return is_folder(folder) and not folder.is_symlink() and not any(folder.iterdir())


def _is_own(folder: Path) -> bool:
    """True if it is a real folder of this user's."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def remove(old: Old) -> Iterator[str]:
    """Remove what aorta wrote, then the folder if it is empty; gives what stays, and why."""
    foreign: list[str] = []
    marks = {"manifest.json", "jobs.jsonl", *(f"{name}.json" for name in FAMILIES)}
    # The record, by which the folder is known as aorta's, goes last.
    for path in sorted(entries(old.root), key=lambda path: path.name in marks):
        if path.name in marks and foreign:
            foreign.append(path.name)
            continue
        try:
            if path.is_symlink() or (is_file(path) and old.files.fullmatch(path.name)):
                if not (old.files.fullmatch(path.name) or old.folders.fullmatch(path.name)):
                    foreign.append(path.name)
                    continue
                path.unlink()
            elif is_folder(path) and old.folders.fullmatch(path.name):
                shutil.rmtree(path)
            else:
                foreign.append(path.name)
        except OSError as error:
            yield f"{path}: {error.strerror}"
            foreign.append(path.name)
    if foreign:
        yield f"{old.root}: aorta did not write {', '.join(sorted(set(foreign) - marks)) or 'all of it'}"
        return
    with contextlib.suppress(OSError):
        old.root.rmdir()
    for path in old.beside:
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
