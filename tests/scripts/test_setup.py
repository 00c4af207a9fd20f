"""setup.sh, as far as it goes before anything is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.sh"


def _setup(folder: Path, python: str = "no-such-python") -> subprocess.CompletedProcess[str]:
    """Run a copy of the script in `folder`, with a Python that is not there."""
    (folder / "scripts").mkdir(parents=True)
    copy = shutil.copy(SCRIPT, folder / "scripts")
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": python}
    return subprocess.run(["bash", copy], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ['a"b', "a$(touch pwned)b", "a`b", "a\\b", "a\nb"])
def test_a_folder_that_the_commands_of_pip_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    done = _setup(tmp_path / name)
    assert done.returncode == 2
    assert "move the checkout" in done.stderr
    assert not list(tmp_path.rglob("pwned"))


def test_blanks_and_apostrophes_are_none_of_these(tmp_path: Path) -> None:
    done = _setup(tmp_path / "it's a folder")
    assert done.returncode == 2
    assert "no-such-python is not installed" in done.stderr


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    done = _setup(tmp_path, "/bin/true")
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "setup: /bin/true is not a Python; set PYTHON to a Python 3.10 to 3.13",
    )
    assert not (tmp_path / ".venv").exists()


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write anywhere")
@pytest.mark.parametrize("closed", [True, False])
def test_an_environment_of_somebody_else_is_left(tmp_path: Path, closed: bool) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for folder in [tmp_path, *tmp_path.parents[:3]]:
        folder.chmod(0o755)
    (tmp_path / ".venv").chmod(0o555 if closed else 0o777)
    another = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*another, "bash", str(tmp_path / "scripts" / "setup.sh")],
        env={"PATH": "/usr/bin:/bin", "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert ("may not write to" in done.stderr) == closed
    assert ("no-such-python is not installed" in done.stderr) != closed
    assert (tmp_path / ".venv" / ".ready").exists()


def test_make_lists_its_targets_where_one_is_mistyped() -> None:
    done = subprocess.run(
        ["make", "-C", str(SCRIPT.parents[1]), "submit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no target 'submit'" in done.stderr
    assert "make submit-profiling" in done.stderr
