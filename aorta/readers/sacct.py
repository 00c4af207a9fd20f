"""Slurm's accounting of a job: asked at analysis, kept as `sacct_summary.txt`, attempts kept apart."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import is_file, read_regular
from aorta.artefacts.io import write_text
from aorta.artefacts.records import State
from aorta.artefacts.slurm_environment import clean_environment, printed_s
from aorta.units import NS_PER_S

FIELDS = (
    "JobID,State,ExitCode,Elapsed,NNodes,NTasks,NodeList,MaxRSS,ReqMem,AllocCPUS,TotalCPU,Timelimit,Start,End"
).split(",")
_RAW = "JobIDRaw"
"""The number of a task of an array by itself: `1043166` for `1043074_91`."""
TIMEOUT_S = 20
CLOCK_SLACK_S = 600.0
"""Largest difference between the clocks of a node and of the accounting."""

_STATES: dict[str, State] = {
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "RECONFIG_FAIL": "failed",
    "SPECIAL_EXIT": "failed",
}
"""States after which a job does not run again; all others are not terminal."""

_MEMORY = re.compile(r"([\d.]+)([KMGTP]?)([nc]?)")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

Row = dict[str, str]
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Host memory of the step that used most, against what the job asked for."""

    used_bytes: int
    requested_bytes: int
    tasks: int

    @property
    def used_pct(self) -> float:
        """An upper estimate: MaxRSS is the largest task's, here taken for every task."""
        return 100.0 * self.used_bytes / self.requested_bytes


@dataclass(frozen=True, slots=True)
class Accounting:
    """Says what accounting says.

    The attempts of a requeued job in order, each the job's row and its steps'.
    """

    attempts: tuple[tuple[Row, ...], ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def state_text(self) -> str | None:
        """Slurm's word for the last attempt, such as `OUT_OF_MEMORY`; None without a row."""
        words = self.attempts[-1][0]["State"].split() if self.attempts else []
        if not words:
            return None
        name = words[0].rstrip("+")
        # A narrow column cuts names off: OUT_OF_ME+.
        whole = [state for state in _STATES if words[0].endswith("+") and state.startswith(name)]
        return whole[0] if len(whole) == 1 else name

    @property
    def state(self) -> State | None:
        """Returns how the last attempt ended; None if it has not ended, or if unknown."""
        return _STATES.get(self.state_text or "")

    @property
    def memory(self) -> MemoryEstimate | None:
        """Tasks × MaxRSS of the last attempt's hungriest step; None where a number for it is absent."""
        if not self.attempts:
            return None
        job, *steps = self.attempts[-1]
        estimates = [estimate for row in steps if (estimate := _memory(row, job)) is not None]
        return max(estimates, key=lambda item: item.used_bytes, default=None)


def ask(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a query and return its text; an answer that takes longer than 20 s is none."""
    environment = clean_environment(os.environ)
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def fetch_accounting(
    job_id: str, summary: Path, run: Run = ask, *, started_wall_ns: int | None = None
) -> Accounting:
    """Ask sacct for the job and keep the answer in `summary`; an earlier answer stays where none comes now.

    Accounting that is switched off, absent or late is a note, never an error: the run's own markers decide.
    So is an answer about another job: ids begin again where a cluster was set up again. `started_wall_ns` is
    when the run started by its manifest. None if unknown, and the id has to do.
    """
    argv = ["sacct", "-j", job_id, "-D", "-n", "-P", "-o", ",".join((*FIELDS, _RAW))]
    try:
        answer = run(argv)
    except FileNotFoundError:
        return _cached(summary, "sacct is not installed on this machine")
    except (OSError, subprocess.TimeoutExpired) as error:
        return _cached(summary, f"sacct did not answer: {error}")
    if answer.returncode != 0:
        # The last line is the reason; those before it are how sacct came to it.
        said = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("sacct: ") if said else f"exit code {answer.returncode}"
        return _cached(summary, f"sacct: {reason}")
    rows = parse_rows(answer.stdout, job_id)
    if not rows:
        return _cached(summary, f"sacct does not know job {job_id} (yet)")
    if started_wall_ns is not None and not _is_this_job(rows, started_wall_ns):
        return _cached(
            summary,
            f"sacct's job {job_id} is a different job: that job was not running when this run started",
        )
    problems = []
    try:
        write_text(summary, summary_text(rows))
    except OSError as error:
        problems.append(Problem(file=summary.name, reason=f"cannot be written: {error.strerror}"))
    return _accounting(rows, problems)


def read_accounting(summary: Path) -> Accounting:
    """The answer kept earlier; empty where there is none."""
    if not is_file(summary):
        return Accounting()
    try:
        text = read_regular(summary).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Accounting(problems=(Problem(file=summary.name, reason=f"cannot be read: {error}"),))
    # In a last line without an end the last cell may lack characters.
    lines = [line for line in text.splitlines(keepends=True) if line.strip()]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    if not cells or not {"JobID", "State"} <= set(cells[0]):
        return Accounting(problems=(Problem(file=summary.name, reason="is not a table from sacct"),))
    whole = [
        row
        for line, row in zip(lines, cells, strict=True)
        if line.endswith("\n") and len(row) == len(cells[0])
    ]
    problems = []
    if len(whole) < len(lines):
        reason = f"{len(lines) - len(whole)} of {len(lines)} lines are cut off or do not belong to the table"
        problems.append(Problem(file=summary.name, reason=reason))
    return _accounting([dict(zip(cells[0], row, strict=True)) for row in whole[1:]], problems)


def parse_rows(text: str, job_id: str) -> list[Row]:
    """The rows of `sacct -n -P`, of this job only."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        raw = cells[len(FIELDS)] if len(cells) > len(FIELDS) else ""
        of_job = job_id in (cells[0].split(".")[0], raw.split(".")[0])
        if len(cells) in (len(FIELDS), len(FIELDS) + 1) and of_job:
            rows.append(dict(zip(FIELDS, cells[: len(FIELDS)], strict=True)))
    return rows


def _own(rows: Sequence[Row]) -> list[Row]:
    """The rows without siblings in a federation, which are revoked once one of them runs."""
    kept = [row for row in rows if not row["State"].startswith("REVOKED")]
    return kept or list(rows)


def _out_of_memory(attempt: Sequence[Row]) -> list[str]:
    """The steps that the kernel ended for memory, where the job itself does not say so."""
    job, *steps = attempt
    if job["State"].startswith("OUT_OF_MEMORY"):
        return []
    return [
        f"step {row['JobID']} ended OUT_OF_MEMORY: the kernel killed some of its processes"
        for row in steps
        if row["State"].startswith("OUT_OF_MEMORY")
    ]


def _is_this_job(rows: Sequence[Row], started_wall_ns: int) -> bool:
    """True if any attempt ran at that time, as far as it can be told."""
    jobs = [row for row in rows if "." not in row["JobID"]]
    return not jobs or any(_ran_at(row, started_wall_ns / NS_PER_S) for row in jobs)


def _ran_at(row: Row, moment_s: float) -> bool:
    start, end = printed_s(row.get("Start", "")), printed_s(row.get("End", ""))
    after_start = start is None or start <= moment_s + CLOCK_SLACK_S
    return after_start and (end is None or end >= moment_s - CLOCK_SLACK_S)


def summary_text(rows: Sequence[Row]) -> str:
    """The rows as an aligned table between pipes, as a person reads it and `read_accounting` does."""
    table = [FIELDS, *[[row.get(name, "") for name in FIELDS] for row in rows]]
    widths = [max(len(line[column]) for line in table) for column in range(len(FIELDS))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(lines) + "\n"


def _accounting(rows: Sequence[Row], problems: list[Problem]) -> Accounting:
    attempts: list[list[Row]] = []
    for row in _own(rows):
        if "." not in row["JobID"] or not attempts:
            attempts.append([])
        attempts[-1].append(row)
    found = Accounting(attempts=tuple(tuple(attempt) for attempt in attempts), problems=tuple(problems))
    notes = []
    if len(attempts) > 1:
        notes.append(f"the job was requeued: attempt {len(attempts)} of {len(attempts)} is used")
    if found.state is None:
        notes.append(f"accounting is not complete: it still says {found.state_text or 'nothing'}")
    notes += [note for attempt in found.attempts[-1:] for note in _out_of_memory(attempt)]
    return Accounting(attempts=found.attempts, problems=found.problems, notes=tuple(notes))


def _cached(summary: Path, reason: str) -> Accounting:
    kept = read_accounting(summary)
    if kept.attempts:
        return Accounting(
            kept.attempts, kept.problems, (*kept.notes, f"{reason}, so the earlier answer is used")
        )
    note = f"no accounting ({reason}), so the run's own markers are used to tell how it ended"
    return Accounting(problems=kept.problems, notes=(note,))


def elapsed_seconds(text: str) -> float | None:
    """Seconds of `[days-]hours:minutes:seconds`; None for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


cpu_seconds = elapsed_seconds
"""Seconds of `TotalCPU`, which leaves out hours and may have fractions of a second."""


def requested_bytes(job: Row) -> float | None:
    """Host memory that the whole job asked for; None where it is not said."""
    found = _bytes(job.get("ReqMem", ""), job)
    return float(found) if found else None


def _memory(row: Row, job: Row) -> MemoryEstimate | None:
    used, requested = _bytes(row.get("MaxRSS", ""), job), _bytes(job.get("ReqMem", ""), job)
    tasks = row.get("NTasks", "")
    if not used or not requested or not tasks.isdigit():
        return None
    return MemoryEstimate(used_bytes=used * int(tasks), requested_bytes=requested, tasks=int(tasks))


def _bytes(text: str, job: Row) -> int | None:
    """Bytes of `1947276K`, `16000M` or, before Slurm 21.08, `4Gn` (a node) and `2Gc` (a CPU)."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        return None
    times = {"": "1", "n": job.get("NNodes", ""), "c": job.get("AllocCPUS", "")}[match[3]]
    if not times.isdigit():
        return None
    unit: int = 1024 ** _POWERS[match[2]]
    return round(float(match[1]) * unit) * int(times)
