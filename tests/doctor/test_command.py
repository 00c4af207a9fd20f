"""`aorta doctor` as scripts and people call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.commands.doctor import command
from aorta.doctor import examine as examination
from aorta.doctor.probe import Probe
from aorta.doctor.records import Check

HOSTILE = "[bold]node[/] \x1b]0;x\x07"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def probes(_results: Path) -> list[Probe]:
        return [
            Probe(("packages",), lambda: [Check("packages", "ok", "all 12 installed")]),
            Probe(("results",), lambda: [Check("results", "note", HOSTILE, "make room")]),
        ]

    monkeypatch.setattr(examination, "probes", probes)


@pytest.mark.usefixtures("small")
def test_lines_where_there_is_no_terminal() -> None:
    done = CliRunner().invoke(command, [], standalone_mode=False)
    lines = done.output.splitlines()
    assert lines[0] == "ok       packages: all 12 installed"
    assert lines[1].startswith("note     results: [bold]node[/]")
    assert lines[1].endswith(" -> make room")
    assert "\x1b" not in done.output
    assert done.return_value == 1  # neither `profile` nor `submit` works


@pytest.mark.usefixtures("small")
def test_tables_on_a_terminal_take_names_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(command, [], standalone_mode=False)
    assert "what is here" in done.output
    assert "[bold]node[/]" in done.output
    assert "\x1b]0" not in done.output


@pytest.mark.usefixtures("small")
def test_exit_code_is_that_of_what_is_needed() -> None:
    assert CliRunner().invoke(command, ["--need", "analyze"], standalone_mode=False).return_value == 0
    both = ["--need", "analyze", "--need", "submit"]
    assert CliRunner().invoke(command, both, standalone_mode=False).return_value == 1
    assert CliRunner().invoke(command, ["--need", "flying"]).exit_code == 2


@pytest.mark.usefixtures("small")
def test_the_last_line_names_only_what_does_not_work() -> None:
    output = CliRunner().invoke(command, ["--need", "analyze", "--need", "submit"]).output
    assert output.rstrip().endswith(": submit")


@pytest.mark.usefixtures("small")
def test_json_has_everything() -> None:
    done = CliRunner().invoke(command, ["--json", "--need", "analyze"], standalone_mode=False)
    found = json.loads(done.output)
    assert (found["ok"], found["needed"]) == (True, ["analyze"])
    assert found["checks"][1]["text"] == HOSTILE
    assert found["abilities"][0]["works"] == "in part"
    assert found["abilities"][0]["todo"] == ["make room"]


def test_this_machine_with_nothing_in_its_path(tmp_path: Path) -> None:
    """The whole command, in an environment that has nothing but this Python."""
    argv = [
        sys.executable,
        "-m",
        "aorta",
        "doctor",
        "--json",
        "--results",
        str(tmp_path / "r"),
        "--need",
        "nsys",
    ]
    done = subprocess.run(
        argv,
        env={"PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["slurm programs"]["text"] == "no Slurm here"
    assert by_name["nsys"]["state"] == "missing"
    assert by_name["python"]["state"] == "ok"
    assert (found["ok"], done.returncode) == (False, 1)
    assert not list(tmp_path.iterdir())
