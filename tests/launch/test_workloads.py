"""`make submit-profiling WORKLOAD=dcrnn`: the command that it runs, and what the reports are then called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aorta.config.load import load_config
from aorta.launch.profilers import report_stem

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["WORKLOAD=dcrnn"], "--config config/dcrnn.yaml"),
        (["WORKLOAD=dcrnn", "CONFIG=mine.yaml"], "--config mine.yaml"),
        (["WORKLOAD=ranking"], None),  # of whose two configurations the command takes the one that fits
        ([], None),
    ],
)
def test_the_workload_names_its_configuration(words: list[str], flag: str | None) -> None:
    command = ["make", "--dry-run", "--no-print-directory", "submit-profiling", *words]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in said.splitlines() if "aorta submit" in line]
    assert (flag in line) if flag else ("--config" not in line)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_reports_are_called_after_workload_and_nodes(nodes: int) -> None:
    config = load_config(ROOT / "config" / "dcrnn.yaml", [])
    assert report_stem(config.workload, nodes) == f"dcrnn_{nodes}node_profile"
