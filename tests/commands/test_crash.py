"""A fault of aorta's own: said so, with a file to report; the data stays."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.commands._crash import fault, why
from aorta.errors import ArtefactError

BROKEN = """
import sys
import aorta.commands._jobs as jobs
from aorta import cli
def broken(*_): raise KeyError("odd")
jobs.select_jobs = broken
sys.argv = ["aorta", "status", "--results", "token=secret"]
cli.main()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "aorta" / "faults"


def raised() -> Exception:
    try:
        raise KeyError("odd")
    except KeyError as error:
        return error


def test_a_command_that_breaks_names_a_file_with_the_traceback(state: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [file] = state.iterdir()
    assert done.stderr.splitlines() == [
        "aorta: KeyError: 'odd'",
        f"  hint: this is a bug in aorta; your data is unchanged; please report {file}",
    ]
    text = file.read_text()
    assert "command: aorta status\n" in text
    assert "Traceback" in text
    assert "KeyError: 'odd'" in text
    assert "secret" not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_faults_do_not_share_a_file(state: Path) -> None:
    hints = {fault(raised()).hint, fault(raised()).hint}
    assert len(hints) == 2
    assert len(list(state.iterdir())) == 2


def test_where_no_file_can_be_written_the_traceback_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    error = raised()
    monkeypatch.setattr(os, "open", full)
    found = fault(error, "2node could not be analysed")
    monkeypatch.undo()
    assert found.message == "2node could not be analysed: KeyError: 'odd'"
    assert found.hint.endswith("report the lines above")
    assert "KeyError: 'odd'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "todo"),
    [
        (errno.EACCES, "mode 0750: ask for write access, or name another folder, such as with --results"),
        (errno.EROFS, "free some space, or name another folder with --results or --docs"),
        (errno.EIO, "check the file system, then try again"),
    ],
)
def test_what_the_system_refuses_is_no_fault(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str], number: int, todo: str
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o750)
    error = OSError(number, os.strerror(number), str(theirs / "results" / "x"))
    told = fault(error)
    assert told.message == f"{theirs}/results/x: {os.strerror(number)}"
    assert told.hint.endswith(todo)
    assert told.exit_code == ArtefactError.exit_code
    assert why(error, "2node") == f"2node: {told.message}"
    assert not state.exists()
    assert capsys.readouterr().err == ""
    # Without a file it is ours: nothing says what the system refused.
    assert "bug in aorta" in fault(OSError(number, os.strerror(number))).hint


def test_a_process_that_the_system_killed_is_no_fault(state: Path) -> None:
    told = fault(ChildProcessError("a process was killed"), "run_1 could not be analysed")
    assert told.message == "run_1 could not be analysed: a process was killed"
    assert "memory" in told.hint
    assert told.exit_code == ArtefactError.exit_code
    assert not state.exists()
    # The system's own answer that there is no such child is a bug.
    assert "bug in aorta" in fault(ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))).hint


def test_what_was_foreseen_is_no_fault(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreseen = ArtefactError("x.json: broken", "look")
    assert why(foreseen, "2node could not be analysed") == "2node could not be analysed: x.json: broken"
    assert not state.exists()
    assert why(raised(), "2node could not be analysed") == (
        "2node could not be analysed: KeyError: 'odd' (a bug in aorta)"
    )
    [file] = state.iterdir()
    assert f"report {file}" in capsys.readouterr().err
