"""One and two real ranks: validation adds up exactly, and what comes after an epoch is in no steady step."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import METRICS_COLUMNS
from aorta.workloads.dcrnn.metrics import columns, error_sums, summarise
from aorta.workloads.dcrnn.workload import DcrnnWorkload
from tests.workloads.dcrnn.small import small

ROOT = Path(__file__).parents[3]


def run(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank found."""
    foreign = ("AORTA_", "SLURM_", "TORCHELASTIC_", "MASTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, "-m", "tests.workloads.dcrnn.ranks", str(folder)],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return run(folder, 2)


def test_validation_counts_every_sample_once(found: list[dict[str, Any]], tmp_path: Path) -> None:
    workload = DcrnnWorkload(small(tmp_path, "dcrnn.num_steps=230"))
    torch.manual_seed(0)
    model, part = workload.model().eval(), workload.data.validation
    assert len(part) % 2 == 1
    whole = {name: torch.stack([part[i][name] for i in range(len(part))]) for name in part[0]}
    with torch.no_grad():
        expected = summarise(error_sums(model(whole), whole["target"]).sum(dim=0))
    for rank in found:
        assert rank["validated"] == pytest.approx(expected, rel=1e-6)


def test_all_ranks_have_the_same_weights(found: list[dict[str, Any]]) -> None:
    for form in ("dense", "sparse"):
        assert found[0][form]["state"] == found[1][form]["state"]
    assert found[0]["dense"]["state"] == pytest.approx(found[0]["sparse"]["state"], rel=1e-4)


def test_the_step_after_validation_or_a_checkpoint_is_not_steady(found: list[dict[str, Any]]) -> None:
    # 42 readings for training, 38 windows, 4 steps of 2 × 4 an epoch; the first step warms up.
    for rank in found:
        assert rank["dense"]["epochs"] == [0] * 4 + [1] * 4 + [2] * 2
        first = ["warmup", "steady", "steady", "steady"]
        second = ["validation", "steady", "steady", "steady"]
        assert rank["dense"]["phases"] == [*first, *second, "checkpoint", "steady"]
        assert rank["dense"]["training"] is True


def test_each_epoch_is_a_row_with_its_errors(found: list[dict[str, Any]], folder: Path) -> None:
    assert len(found) == 2
    with RunDir(folder / "dense").metrics_csv.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == (*METRICS_COLUMNS, *columns(2))
    assert [row["steps"] for row in rows] == ["4", "4", "2"]
    for row in rows:
        assert row["val_loss"] == row["val_mae"] != ""
        assert 0 < float(row["val_mae"]) <= float(row["val_rmse"])
        assert float(row["val_mape_h2"]) > 0


def test_a_checkpoint_holds_the_weights_and_nothing_that_runs(
    found: list[dict[str, Any]], folder: Path
) -> None:
    run_dir = RunDir(folder / "dense")
    saved = [path.name for path in run_dir.checkpoint(0).parent.iterdir()]
    assert saved == ["epoch_1.pt"]  # after every second epoch
    content = torch.load(run_dir.checkpoint(1), weights_only=True)
    assert (content["epoch"], content["steps"]) == (1, 8)
    workload = DcrnnWorkload(small(folder))
    model = workload.model()
    model.load_state_dict(content["model"])
    sums = [value.double().sum().item() for value in model.state_dict().values()]
    assert sums != found[0]["dense"]["state"]  # two steps before the end
    assert float(content["model"]["mean"]) == pytest.approx(workload.data.mean)
