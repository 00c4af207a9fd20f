"""`aorta gate` on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from aorta.artefacts.gate import GateCause, GateResult
from aorta.artefacts.io import read_json
from aorta.commands.gate import command
from aorta.errors import AortaError, ArtefactError, ConfigError
from aorta.report.gate import cause_words, junit, markdown


def gate(tmp_path: Path, first: str, second: str, *more: str) -> tuple[Result, Path]:
    """Both programs are bodies of `python -c`."""
    words = [f'{sys.executable} -c "{body}"' for body in (first, second)]
    arguments = ["--a", words[0], "--b", words[1], "--output", str(tmp_path / "gate"), *more]
    outcome = CliRunner().invoke(command, arguments, standalone_mode=False)
    folder = next(iter(sorted((tmp_path / "gate").glob("run_*"))), tmp_path)
    return outcome, folder


@pytest.mark.parametrize(("b", "code", "ratio"), [(1.05, 1, 1.05), (1.0, 0, 1.0), (0.9, 0, 0.9)])
def test_the_exit_status_says_whether_b_is_slower(tmp_path: Path, b: float, code: int, ratio: float) -> None:
    outcome, folder = gate(tmp_path, "print('ms=1.0')", f"print('ms={b}')", "--metric", "ms=([0-9.]+)")
    assert outcome.exception is None
    assert outcome.return_value == code
    found = read_json(folder / "gate.json", GateResult)
    assert (found.slower, found.measured, len(found.log_ratios)) == (bool(code), "printed number", 6)
    assert found.ratio == pytest.approx(ratio)
    sides = "".join(run.side for run in found.runs)
    assert sides == "AB" + "ABBA" + "BAAB" + "ABBA" + "BAAB" + "ABBA" + "BAAB"
    case = ElementTree.fromstring((folder / "gate.xml").read_text(encoding="utf-8"))
    assert case.get("failures") == str(code)
    assert (case.find("testcase/failure") is not None) == bool(code)
    assert ("B is slower than A" in (folder / "gate.md").read_text(encoding="utf-8")) == bool(code)


def test_the_cpu_time_of_a_command_is_measured(tmp_path: Path) -> None:
    work = "sum(n * n for n in range({}))"
    outcome, folder = gate(tmp_path, work.format(1), work.format(600_000), "--cpu-time")
    assert outcome.return_value == 1
    assert read_json(folder / "gate.json", GateResult).measured == "CPU time, s"


@pytest.mark.parametrize(
    ("first", "more", "error", "words"),
    [
        ("raise SystemExit(3)", (), ArtefactError, "exit status 3"),
        ("import time; time.sleep(60)", ("--timeout", "1"), ArtefactError, "did not end within 1 s"),
        ("print('nothing')", ("--metric", "ms=([0-9.]+)"), ArtefactError, "matches no positive number"),
        ("print('ms=0')", ("--metric", "ms=([0-9.]+)"), ArtefactError, "matches no positive number"),
        ("pass", ("--metric", "ms=[0-9.]+"), ConfigError, "has 0 groups"),
        ("pass", ("--metric", "ms=(["), ConfigError, "--metric"),
        ("pass", ("--metric", "(a)", "--cpu-time"), ConfigError, "cannot be used together"),
        ("pass", ("--b", "echo 'a"), ConfigError, "no closing quotation"),
        ("pass", ("--b", " "), ConfigError, "--b is empty"),
    ],
)
def test_what_gives_no_measurement_is_an_error(
    tmp_path: Path, first: str, more: tuple[str, ...], error: type[AortaError], words: str
) -> None:
    outcome, _ = gate(tmp_path, first, "pass", *more)
    assert isinstance(outcome.exception, error)
    assert words in str(outcome.exception)


def test_the_cause_names_part_rank_and_line() -> None:
    cause = GateCause(
        part="data wait",
        before_ms=10.0,
        after_ms=15.0,
        verdict="data loading",
        ranks=[3],
        where="read (loader.py:7)",
    )
    found = GateResult(
        a="a",
        b="b </failure>",
        measured="step time, ms",
        limit=0.02,
        slower=True,
        decided=True,
        ratio=1.05,
        log_ratios=[0.05],
        evidence=9.0,
        runs=[],
        cause=cause,
    )
    said = "data wait grew from 10.0 to 15.0 ms per step; B's verdict is data loading on rank 3"
    said += ", in read (loader.py:7)"
    assert cause_words(found) == said
    failure = ElementTree.fromstring(junit(found)).find("testcase/failure")
    assert failure is not None
    assert failure.text == said
    assert "loader.py:7" in markdown(found)


def test_a_run_that_fails_is_an_error_of_the_test_case_and_no_failure(tmp_path: Path) -> None:
    outcome, folder = gate(tmp_path, "print(1)", "raise SystemExit(3)")
    assert isinstance(outcome.exception, ArtefactError)
    suite = ElementTree.fromstring((folder / "gate.xml").read_text(encoding="utf-8"))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "exit status 3" in str(error.get("message"))


def test_a_gate_that_is_told_to_end_ends_the_run_that_goes_on(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    waits = f"import os, time; open('{pid}', 'w').write(str(os.getpid())); time.sleep(600)"
    words = [sys.executable, "-m", "aorta", "gate", "--b", "true", "--output", str(tmp_path / "gate")]
    told = subprocess.Popen(
        [*words, "--a", f'{sys.executable} -c "{waits}"'], stderr=subprocess.PIPE, text=True
    )
    child = int(pid.read_text(encoding="utf-8"))
    told.send_signal(signal.SIGTERM)
    assert told.wait(60) == 128 + signal.SIGTERM
    assert told.stderr is not None
    assert "B was not judged" in told.stderr.read()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
