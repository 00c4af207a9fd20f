"""An installed aorta: what its wheel holds, and that it works outside a checkout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.io import read_json
from tests.support.synthetic import RunSpec, write_run

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None,
    reason="hatchling, which builds the wheel, is not installed",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel, unpacked as pip does it."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("aorta-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def aorta(installed: Path, folder: Path, *arguments: str) -> str:
    """Run the command from `folder`; nothing of the checkout is on its path."""
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from aorta.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_that_is_no_code(installed: Path) -> None:
    def below(folder: Path) -> set[str]:
        return {
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    missing = below(ROOT / "aorta") - below(installed / "aorta")
    assert missing == set()
    assert below(installed / "aorta/config/files") == below(ROOT / "config")


def test_it_works_from_any_folder(installed: Path, tmp_path: Path) -> None:
    where = "import aorta, aorta.config.shipped as s; print(aorta.__file__); print(s.shipped('small.yaml'))"
    done = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        str(installed / "aorta/__init__.py"),
        str(installed / "aorta/config/files/small.yaml"),
    ]
    assert "aggregate" in aorta(installed, tmp_path, "--help")
    write_run(tmp_path / "results", RunSpec())
    aorta(installed, tmp_path, "aggregate", "results", "--docs", "docs")
    assert read_json(tmp_path / "docs/BOTTLENECK_ANALYSIS.json", Aggregate).scenarios
    assert (tmp_path / "docs/BOTTLENECK_ANALYSIS.md").read_text().startswith("#")


def test_the_users_own_configuration_comes_first(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aorta.config.shipped import shipped

    monkeypatch.chdir(tmp_path)
    assert shipped("small.yaml") == ROOT / "config/small.yaml"
    (tmp_path / "config").mkdir()
    (tmp_path / "config/small.yaml").write_text("training: {}\n")
    assert shipped("small.yaml") == Path("config/small.yaml")
    assert shipped("absent.yaml") == Path("config/absent.yaml")
