"""The command: light to import, every subcommand there, errors as one message and an exit code."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.cli import COMMANDS, group
from aorta.errors import AortaError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from aorta.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_explains_itself(name: str) -> None:
    result = CliRunner().invoke(group, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


@pytest.mark.parametrize("name", ["run-node", "monitor"])
def test_what_runs_in_the_job_does_not_load_the_analysis_or_torch(name: str) -> None:
    code = (
        "import sys; sys.argv = ['aorta', sys.argv[1], '--help']\n"
        "from aorta.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_process_ends_with_what_is_registered_for_its_end_and_the_exit_code() -> None:
    code = (
        "import atexit, gc, sys\n"
        "from aorta.__main__ import run\n"
        "assert gc.isenabled()\n"
        "atexit.register(print, 'registered')\n"
        "run()\n"
        "print('never')"
    )
    for arguments, status in ((["--version"], 0), (["frobnicate"], 2)):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
        )
        assert result.returncode == status
        assert result.stdout.splitlines()[-1] == "registered"


@pytest.mark.parametrize("handler", ["signal.default_int_handler", "signal.SIG_IGN"])
def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(handler: str) -> None:
    code = (
        "import os, signal, sys\n"
        f"signal.signal(signal.SIGINT, {handler})\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'aorta.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from aorta.__main__ import run\n"
        f"assert signal.getsignal(signal.SIGINT) is {handler}\n"
        "print('went on')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    ended = (0, "went on\n") if handler == "signal.SIG_IGN" else (-signal.SIGINT, "")
    assert (result.returncode, result.stdout) == ended


@pytest.mark.parametrize(("arguments", "status"), [("--version", 0), ("frobnicate", 2)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_closed_before_the_start_are_no_error(
    arguments: str, status: int, closed: str
) -> None:
    command = f"{shlex.quote(sys.executable)} -m aorta {arguments} {closed}"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert "Traceback" not in result.stderr


def test_a_thread_that_still_works_is_waited_for() -> None:
    code = (
        "import threading, time\n"
        "from aorta.__main__ import run\n"
        "def work():\n"
        "    time.sleep(0.2)\n"
        "    print('done', flush=True)\n"
        "threading.Thread(target=work).start()\n"
        "run()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "done"


def test_an_unknown_subcommand_is_a_usage_error() -> None:
    result = run("frobnicate")
    assert result.returncode == 2
    assert "No such command" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_of_a_group_that_is_nearly_one_is_suggested() -> None:
    result = run("cluster", "stats")
    assert result.returncode == 2
    assert "No such command 'stats'. Did you mean 'status'?" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("datloading", "data_loading"),
        ("Data-Loadng", "data_loading"),
        ("fp32_matmuls", "fp32_matmul"),
        ("thresholds.data_wait", "data_wait_pct"),
    ],
)
def test_an_explanation_that_is_nearly_one_is_suggested(typed: str, meant: str) -> None:
    result = run("explain", typed)
    assert result.returncode == 2
    assert f"did you mean {meant}?" in result.stderr
    assert "did you mean" not in run("explain", "qqqqqqqqq").stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("analyse", "analyze"), ("agregate", "aggregate"), ("run_node", "run-node")]
)
def test_a_command_that_is_nearly_one_is_suggested(typed: str, meant: str) -> None:
    result = run(typed)
    assert result.returncode == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in result.stderr


def test_a_reader_that_goes_away_is_no_fault() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m aorta --help | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_an_error_of_ours_is_a_message_with_a_hint_and_its_exit_code(
    tmp_path: pytest.TempPathFactory,
) -> None:
    result = run("analyze", f"{tmp_path}/nothing")
    assert result.returncode == 4
    assert result.stderr.startswith("aorta: ")
    assert "Traceback" not in result.stderr


def test_every_exit_code_of_an_error_is_documented() -> None:
    text = (Path(__file__).parent.parent / "docs" / "workflow.md").read_text(encoding="utf-8")
    rows = {int(code) for code in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)}
    kinds = [AortaError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.exit_code for kind in kinds} | {0, 6} == rows
