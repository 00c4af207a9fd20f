"""What `aorta configure` asks at a terminal, and what Enter means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aorta import cli
from aorta.commands import configure
from aorta.launch.tools import ToolAnswer
from tests.support.commands import without_site
from tests.support.slurm import FakeSlurm


@pytest.fixture(autouse=True)
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person at a terminal, in a folder with `scripts`."""
    without_site(monkeypatch)
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path)

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    class System:
        stdin = Terminal

    monkeypatch.setattr(configure, "sys", System)
    return tmp_path


def accounts(default: str) -> ToolAnswer | object:
    """Three accounts, and the one that Slurm takes by itself."""

    def reply(argv: Sequence[str]) -> ToolAnswer:
        return ToolAnswer(0, f"{default}\n" if "user" in argv else "Beta\nalpha\ngamma\n")

    return reply


def typed(*lines: str) -> Result:
    answers = "".join(f"{line}\n" for line in lines)
    return CliRunner().invoke(cli.group, ["configure"], input=answers, standalone_mode=False)


def test_enter_takes_slurms_default_account(slurm: FakeSlurm, terminal: Path) -> None:
    slurm.replies["sacctmgr"] = accounts("Beta")  # type: ignore[assignment]
    result = typed("", "")
    assert result.exception is None
    assert "[beta]" in result.output
    text = (terminal / "scripts" / "profiling_config.sh").read_text()
    assert "export SLURM_ACCOUNT=beta\n" in text
    assert "export SLURM_PARTITION=debug\n" in text


@pytest.mark.parametrize("default", ["", "another"])
def test_without_a_usable_default_an_empty_line_says_what_to_type(
    default: str, slurm: FakeSlurm, terminal: Path
) -> None:
    slurm.replies["sacctmgr"] = accounts(default)  # type: ignore[assignment]
    result = typed("", "", "gamma")
    assert result.exception is None
    assert "there is no default; type one of alpha, beta, gamma" in result.output
    assert "export SLURM_ACCOUNT=gamma\n" in (terminal / "scripts" / "profiling_config.sh").read_text()


def test_what_comes_next_can_be_typed_in_a_users_own_folder(slurm: FakeSlurm, terminal: Path) -> None:
    result = typed("", "")
    last = result.output.splitlines()[-1]
    assert last == "next: source scripts/profiling_config.sh && aorta submit -- YOUR_PROGRAM.py"
    [line] = [
        line
        for line in Path("scripts/profiling_config.sh").read_text().splitlines()
        if "AORTA_CONFIG" in line
    ]
    config = line.partition("=")[2]
    (terminal / "my_train.py").write_text("")
    submitted = CliRunner(env={"AORTA_CONFIG": config}).invoke(
        cli.group, ["submit", "--nodes", "1", "--dry-run", "--", "my_train.py"], standalone_mode=False
    )
    assert submitted.exception is None
    assert "-- my_train.py" in submitted.output


def test_in_the_checkout_a_script_comes_next(slurm: FakeSlurm, terminal: Path) -> None:
    (terminal / "pyproject.toml").write_text('[project]\nname = "aorta"\n')
    last = typed("", "").output.splitlines()[-1]
    assert last == "next: source scripts/profiling_config.sh && ./scripts/run_profiling.sh"
