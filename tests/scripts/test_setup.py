"""setup.sh, as far as it goes before anything is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.sh"


def _setup(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script in `folder`, with a Python that is not there."""
    (folder / "scripts").mkdir(parents=True)
    copy = shutil.copy(SCRIPT, folder / "scripts")
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "no-such-python"}
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
