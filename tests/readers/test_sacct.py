"""Accounting: attempts apart, switched off, late, kept; memory as an upper estimate."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from aorta.readers.sacct import FIELDS, Accounting, fetch_accounting, parse_rows, read_accounting


def row(job: str, state: str, **more: str) -> str:
    values = {"JobID": job, "State": state, "ExitCode": "0:0", "NNodes": "1", **more}
    return "|".join(values.get(name, "") for name in FIELDS)


def answer(text: str, code: int = 0, error: str = "") -> object:
    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if argv[0] != "sacct":
            raise AssertionError(f"unknown command {argv}")
        assert "-D" in argv
        assert argv[argv.index("-j") + 1] == "77"
        return subprocess.CompletedProcess(list(argv), code, text, error)

    return run


def fetch(summary: Path, run: object) -> Accounting:
    return fetch_accounting("77", summary, run)  # type: ignore[arg-type]


def test_requeued_attempts_are_kept_apart_and_the_last_decides(tmp_path: Path) -> None:
    lines = []
    for _ in range(4):
        lines += [
            row("77", "REQUEUED"),
            row("77.batch", "CANCELLED"),
            row("77.0", "CANCELLED", MaxRSS="9G", NTasks="9"),
        ]
    lines += [row("77", "COMPLETED", ReqMem="4G"), row("77.batch", "COMPLETED", MaxRSS="1G", NTasks="1")]
    found = fetch(tmp_path / "sacct_summary.txt", answer("\n".join(lines)))
    assert len(found.attempts) == 5
    assert [len(attempt) for attempt in found.attempts] == [3, 3, 3, 3, 2]
    assert found.state == "completed"
    assert found.memory is not None
    assert found.memory.used_pct == 100 * 1 / 4
    assert found.notes == ("the job was requeued: attempt 5 of 5 is used",)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COMPLETED", "completed"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("TIMEOUT", "timeout"),
        ("OUT_OF_MEMORY", "failed"),
        ("OUT_OF_ME+", "failed"),
        ("OUT_OF_ME", None),
        ("NODE_FAIL", "failed"),
        ("RUNNING", None),
        ("REQUEUED", None),
        ("SOMETHING_NEW", None),
    ],
)
def test_states(tmp_path: Path, text: str, state: str | None) -> None:
    found = fetch(tmp_path / "s.txt", answer(row("77", text)))
    assert found.state == state
    assert bool(found.notes) == (state is None)


def test_accounting_that_is_switched_off_is_a_note(tmp_path: Path) -> None:
    summary = tmp_path / "sacct_summary.txt"
    found = fetch(summary, answer("", 1, "Slurm accounting storage is disabled\n"))
    assert found.state is None
    assert found.notes == (
        "no accounting (sacct: Slurm accounting storage is disabled), so the run's own markers "
        "are used to tell how it ended",
    )
    assert not summary.exists()


def missing(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    raise FileNotFoundError(argv[0])


def hanging(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    raise subprocess.TimeoutExpired(list(argv), 20)


@pytest.mark.parametrize("run", [missing, hanging, answer(""), answer("", 1, "down")])
def test_an_earlier_answer_stays_when_none_comes(tmp_path: Path, run: object) -> None:
    summary = tmp_path / "sacct_summary.txt"
    first = fetch(summary, answer(row("77", "COMPLETED", Elapsed="00:01:02", NodeList="node[1-2]")))
    text = summary.read_text()
    later = fetch(summary, run)
    assert later.attempts == first.attempts
    assert later.state == "completed"
    assert "the earlier answer is used" in later.notes[-1]
    assert summary.read_text() == text


def test_the_summary_is_an_aligned_table_that_reads_back(tmp_path: Path) -> None:
    summary = tmp_path / "sacct_summary.txt"
    found = fetch(summary, answer(row("77", "COMPLETED") + "\n" + row("77.batch", "COMPLETED", MaxRSS="5K")))
    lines = summary.read_text().splitlines()
    assert lines[0].split("|")[0].strip() == "JobID"
    assert len({tuple(i for i, char in enumerate(line) if char == "|") for line in lines}) == 1
    assert read_accounting(summary).attempts == found.attempts


def test_a_summary_of_something_else_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "sacct_summary.txt"
    path.write_text("hello\n")
    assert read_accounting(path).problems[0].file == "sacct_summary.txt"
    assert read_accounting(tmp_path / "absent.txt") == Accounting()


def test_banners_and_other_jobs_are_left_out() -> None:
    text = (
        "Welcome to the site!\n"
        + row("78", "FAILED")
        + "\n"
        + row("77", "COMPLETED")
        + "\n"
        + row("771", "FAILED")
    )
    assert [item["JobID"] for item in parse_rows(text, "77")] == ["77"]


@pytest.mark.parametrize(
    ("requested", "cells", "percent"),
    [
        ("16000M", {}, 100 * 8 * 1947276 * 1024 / (16000 * 1024**2)),  # about 95
        ("8000Mn", {"NNodes": "2"}, 100 * 8 * 1947276 * 1024 / (2 * 8000 * 1024**2)),
        ("4000Mc", {"AllocCPUS": "4"}, 100 * 8 * 1947276 * 1024 / (4 * 4000 * 1024**2)),
    ],
)
def test_memory_is_tasks_times_the_largest_task(
    tmp_path: Path, requested: str, cells: dict[str, str], percent: float
) -> None:
    text = "\n".join(
        [
            row("77", "COMPLETED", ReqMem=requested, **cells),
            row("77.0", "COMPLETED", MaxRSS="1947276K", NTasks="8"),
        ]
    )
    memory = fetch(tmp_path / "s.txt", answer(text)).memory
    assert memory is not None
    assert memory.used_pct == pytest.approx(percent)
    assert round(memory.used_pct) == 95
    assert memory.tasks == 8


@pytest.mark.parametrize(
    "step", [{"MaxRSS": "", "NTasks": "8"}, {"MaxRSS": "5K", "NTasks": ""}, {"MaxRSS": "0"}]
)
def test_memory_without_a_number_is_none(tmp_path: Path, step: dict[str, str]) -> None:
    text = row("77", "COMPLETED", ReqMem="1G") + "\n" + row("77.0", "COMPLETED", **step)
    assert fetch(tmp_path / "s.txt", answer(text)).memory is None


def at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize(
    ("start", "end", "ours"),
    [
        (at(1000), at(9000), True),
        (at(1000), "Unknown", True),
        ("Unknown", "Unknown", True),
        (at(5_000_000), at(5_009_000), False),  # began long after the run
        (at(1000), at(2000), False),  # had ended before the run began
    ],
)
def test_another_job_of_the_same_id_is_not_believed(tmp_path: Path, start: str, end: str, ours: bool) -> None:
    summary = tmp_path / "sacct_summary.txt"
    fetch(summary, answer(row("77", "COMPLETED")))
    said = answer(row("77", "FAILED", Start=start, End=end))
    found = fetch_accounting("77", summary, said, started_wall_ns=5000 * 10**9)  # type: ignore[arg-type]
    assert found.state == ("failed" if ours else "completed")
    assert any("is a different job" in note for note in found.notes) is not ours


def test_an_attempt_at_that_time_makes_the_job_ours(tmp_path: Path) -> None:
    attempts = [row("77", "REQUEUED", Start=at(1000), End=at(6000)), row("77", "COMPLETED", Start=at(90_000))]
    said = answer("\n".join(attempts))
    found = fetch_accounting("77", tmp_path / "s", said, started_wall_ns=5000 * 10**9)  # type: ignore[arg-type]
    assert found.state == "completed"
