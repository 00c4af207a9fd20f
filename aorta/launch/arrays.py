"""Ids of array tasks: `123_4`, and how Slurm writes several that share a row: `123_[0-3,7%2]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TASKS = re.compile(r"(?P<array>\d+)_\[?(?P<tasks>[\d,:-]+)(?:%\d+)?\]?")
_RANGE = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+)(?::(?P<step>[1-9]\d*))?)?")


def array_of(job_id: str) -> str:
    """The id of the whole array that `123_4` is a task of; any other job's own id."""
    array, separator, task = job_id.partition("_")
    return array if separator and array.isdigit() and task.isdigit() else job_id


def job_of(text: str) -> str:
    """The job of a row: `12` of `12+1`, a component of a heterogeneous job; any other row's own id."""
    job, separator, component = text.partition("+")
    return job if separator and job.isdigit() and component.isdigit() else text


def is_task(job_id: str) -> bool:
    """True if the id names one task of an array."""
    return array_of(job_id) != job_id


def expand_ids(text: str) -> list[str]:
    """The jobs of one row: tasks that have not started share it, `123_[0-3,7%2]`; a plain id stands alone."""
    match = _TASKS.fullmatch(text)
    if match is None:
        return [text]
    found = []
    for part in match["tasks"].split(","):
        span = _RANGE.fullmatch(part)
        if span is None:
            return [text]
        low, high, step = int(span["low"]), int(span["high"] or span["low"]), int(span["step"] or 1)
        found += [f"{match['array']}_{task}" for task in range(low, high + 1, step)]
    return found


def tasks_of(array: str, job_ids: Iterable[str]) -> list[str]:
    """The tasks of `array` among `job_ids`, each once, by index."""
    found = {job_id for job_id in job_ids if is_task(job_id) and array_of(job_id) == array}
    return sorted(found, key=lambda job_id: int(job_id.partition("_")[2]))
