"""Runs in MLflow and W&B, by the real libraries where they are installed."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.commands._analysis import analyze_run
from aorta.errors import ArtefactError, PlanError
from aorta.exports import trackers
from tests.support.run_spec import RunSpec
from tests.support.synthetic import write_run

STEPS = 30


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    made = write_run(tmp_path_factory.mktemp("results"), RunSpec(nodes=1, steps=STEPS, job_id="7"))
    write_json(made.analysis, analyze_run(made).analysis)
    return made


def test_mlflow(run: RunDir, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'aorta[mlflow]'")
    uri = (tmp_path / "mlruns").as_uri()
    made = trackers.to_mlflow(run.root, tracking_uri=uri, experiment="mine")
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.get_run(made)
    analysis = json.loads(run.analysis.read_text())
    assert found.data.tags["verdict"] == analysis["verdict"]["kind"]
    assert found.data.metrics["samples_per_s"] == analysis["throughput"]["samples_per_s"]
    assert len(client.get_metric_history(made, "train_step_ms")) == STEPS
    assert "gpu_util_pct" not in found.data.metrics, "a CPU run has none"
    names = {item.path for item in client.list_artifacts(made)}
    assert {"profiling_analysis.json", "config.yaml"} <= names
    assert found.info.status == "FINISHED"
    again = trackers.to_mlflow(run.root, tracking_uri=uri, experiment="mine")
    assert client.get_run(again).info.experiment_id == found.info.experiment_id


def test_what_mlflow_refuses_is_no_bug_of_aorta(run: RunDir) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'aorta[mlflow]'")
    with pytest.raises(PlanError, match="MLflow refuses the run") as told:
        trackers.to_mlflow(run.root, tracking_uri="nothing://at-all")
    assert "--tracking-uri" in told.value.hint


def test_wandb_offline(run: RunDir, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed: pip install 'aorta[wandb]'")
    before = set(threading.enumerate())
    made = trackers.to_wandb(run.root, folder=tmp_path)
    assert set(threading.enumerate()) <= before, "nothing stays behind that would send something"
    (log,) = made.glob("run-*.wandb")
    assert made.name.startswith("offline-run-")
    text = log.read_bytes()
    assert text.count(b"train_step_ms") >= STEPS
    assert b"samples_per_s" in text


def test_without_the_libraries(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(PlanError, match="mlflow is not installed") as told:
        trackers.to_mlflow(run.root)
    assert "aorta[mlflow]" in str(told.value)
    with pytest.raises(PlanError, match="wandb is not installed"):
        trackers.to_wandb(run.root, folder=tmp_path)


def test_a_run_that_nobody_analysed(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="was not analysed"):
        trackers.to_mlflow(write_run(tmp_path, RunSpec(steps=3)).root)


def test_long_series_are_thinned(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trackers.step_series(run.root)
    assert [step for step, _, _ in whole] == list(range(STEPS))
    monkeypatch.setattr(trackers, "MOST_POINTS", 10)
    assert trackers.step_series(run.root) == whole[::3]


def test_what_is_sent_is_masked_and_follows_no_link(run: RunDir, tmp_path: Path) -> None:
    secret = "hf_" + "abcdEFGH1234" * 3
    copied, sent = RunDir(tmp_path / "run"), tmp_path / "sent"
    shutil.copytree(run.root, copied.root)
    written = json.loads(copied.analysis.read_text())
    written["verdict"]["statement"] = f"failed with {secret}"
    copied.analysis.write_text(json.dumps(written))
    with copied.config.open("a") as stream:
        stream.write(f"# token: {secret}\n")
    (tmp_path / "key").write_text("a private key")
    (copied.root / "profiling_report.txt").symlink_to(tmp_path / "key")
    (copied.root / "profiling_analysis.png").unlink(missing_ok=True)
    (copied.root / "profiling_analysis.png").write_bytes(b"\x89PNG")
    sent.mkdir()
    analysis = trackers._analysis(copied.root)
    assert secret not in str(trackers._words(analysis))
    found = {path.name: path.read_bytes() for path in trackers._copies(copied.root, analysis, sent)}
    assert set(found) == {"profiling_analysis.json", "config.yaml", "profiling_analysis.png"}
    assert all(secret.encode() not in data for data in found.values())
    assert json.loads(found["profiling_analysis.json"])["verdict"]["kind"] == analysis.verdict.kind
    assert found["profiling_analysis.png"] == b"\x89PNG"
