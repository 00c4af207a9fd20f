from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aorta.errors import AortaError, ConfigError
from aorta.workloads.dcrnn.data import Samples, Stored, bounds, split
from aorta.workloads.dcrnn.workload import DcrnnWorkload
from tests.workloads.dcrnn.small import small


def arrays(tmp_path: Path, readings: np.ndarray, nodes: int = 2, **more: Any) -> list[str]:
    np.savez(tmp_path / "r.npz", readings=readings, **more)
    np.save(tmp_path / "g.npy", np.ones((nodes, nodes)))
    return [f"dcrnn.data={tmp_path / 'r.npz'}", f"dcrnn.adjacency={tmp_path / 'g.npy'}", "dcrnn.num_nodes=2"]


def test_a_window_is_a_history_and_what_follows() -> None:
    signals = np.arange(6, dtype=np.float32)[:, None, None] * np.array([1, 100], dtype=np.float32)
    samples = Samples(signals, 2, 3)
    assert len(samples) == 2
    sample = samples[1]
    assert sample["history"].tolist() == [[[1, 100]], [[2, 200]]]
    assert sample["target"].tolist() == [[3], [4], [5]]


def test_parts_follow_in_time_and_share_nothing(tmp_path: Path) -> None:
    readings = np.arange(1, 101, dtype=np.float32)[:, None] * np.ones((1, 2), dtype=np.float32)
    found = split(small(tmp_path, *arrays(tmp_path, readings)))
    assert bounds(100) == (70, 80)
    seen = []
    for part in (found.train, found.validation, found.test):
        values = {float(x) for s in range(len(part)) for x in part[s]["history"][..., 0].unique()}
        values |= {float(x) for s in range(len(part)) for x in part[s]["target"].unique()}
        seen.append((min(values), max(values)))
    assert seen == [(1, 70), (71, 80), (81, 100)]
    assert found.channels == 1  # no clock, no time of day
    assert (found.mean, found.deviation) == (pytest.approx(71 / 2), pytest.approx(np.arange(1, 71).std()))


def test_missing_readings_do_not_move_the_mean(tmp_path: Path) -> None:
    readings = np.array([[10.0, 0.0], [20.0, np.nan]] * 30)
    found = split(small(tmp_path, *arrays(tmp_path, readings)))
    assert (found.mean, found.deviation) == (15.0, 5.0)
    zeros = split(small(tmp_path, *arrays(tmp_path, readings), "dcrnn.missing_value=null"))
    assert zeros.mean == (10 + 0 + 20) / 3


def test_the_clock_becomes_a_channel(tmp_path: Path) -> None:
    clock = np.datetime64("2012-03-01") + np.arange(60) * np.timedelta64(6, "h")
    readings = np.arange(1.0, 121.0).reshape(60, 2)
    found = split(small(tmp_path, *arrays(tmp_path, readings, timestamps=clock)))
    assert found.channels == 2
    assert found.train[1]["history"][:, 0, 1].tolist() == [0.25, 0.5, 0.75]


def windows(folder: Path, name: str, count: int, length: int = 3, horizon: int = 2) -> None:
    source = np.random.default_rng(0)
    x = source.uniform(1, 9, (count, length, 2, 2))
    np.savez(folder / f"{name}.npz", x=x, y=source.uniform(1, 9, (count, horizon, 2, 2)))


def test_windows_made_beforehand(tmp_path: Path) -> None:
    chosen = arrays(tmp_path, np.ones((9, 2)))
    for name, count in (("train", 8), ("val", 3), ("test", 2)):
        windows(tmp_path, name, count)
    config = small(tmp_path, *chosen, f"dcrnn.data={tmp_path}")
    found = split(config)
    assert isinstance(found.train, Stored)
    assert (len(found.train), len(found.validation), len(found.test)) == (8, 3, 2)
    assert found.train[0]["history"].shape == (3, 2, 2)
    assert found.mean == pytest.approx(found.train.windows.history[..., 0].mean())
    with pytest.raises(ConfigError, match=r"dcrnn\.seq_len is 4, but the windows in .* have 3"):
        split(small(tmp_path, *chosen, f"dcrnn.data={tmp_path}", "dcrnn.seq_len=4"))
    windows(tmp_path, "val", 3, horizon=1)
    with pytest.raises(ConfigError, match=r"val\.npz: windows differ in size"):
        split(config)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["dcrnn.num_nodes=3"], r"dcrnn\.num_nodes is 3, but .*r\.npz has 2 sensors"),
        (["dcrnn.adjacency=null"], r"dcrnn\.adjacency is null"),
        (["dcrnn.data=null"], r"dcrnn\.data is null"),
        (["dcrnn.data=/nowhere.npz"], r"dcrnn\.data: /nowhere\.npz does not exist"),
        (["dcrnn.seq_len=40"], r"the train part of the traffic has 35 readings per sensor.* needs 42"),
        (["dcrnn.missing_value=4"], r"0 readings that are all equal or missing"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, overrides: list[str], said: str) -> None:
    chosen = arrays(tmp_path, np.full((50, 2), 4.0))
    with pytest.raises(AortaError, match=said):
        split(small(tmp_path, *chosen, *overrides))


def test_a_graph_of_other_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AortaError, match=r"g\.npy: a graph of 3 sensors, but .*r\.npz has 2"):
        split(small(tmp_path, *arrays(tmp_path, np.arange(100.0).reshape(50, 2), nodes=3)))


def test_data_below_one_step_are_refused(tmp_path: Path) -> None:
    # 60 readings: 42 for training, 42 - 5 + 1 windows.
    workload = DcrnnWorkload(small(tmp_path, "training.batch_size=19"))
    workload.check(2)
    with pytest.raises(ConfigError, match=r"has 38 windows: one step needs 57"):
        workload.check(3)


def test_the_delay_is_slept_in_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("aorta.workloads.dcrnn.data.time.sleep", slept.append)
    found = split(small(tmp_path, "dataset.delay_ms=30"))
    found.validation[0]
    assert slept == []
    found.train[0]
    assert slept == [0.03]


def test_keys_of_the_other_workload_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DcrnnWorkload(small(tmp_path, "model.num_heads=2", "dataset.seed=3", "dataset.vocab_size=5"))
    assert "workload dcrnn ignores these keys: model.num_heads=2, dataset.vocab_size=5" in caplog.text


def test_a_model_fits_its_data(tmp_path: Path) -> None:
    workload = DcrnnWorkload(small(tmp_path))
    sample = {name: value.unsqueeze(0) for name, value in workload.dataset()[0].items()}
    output = workload.model().eval()(sample)
    assert output.shape == sample["target"].shape == (1, 2, 3)
    assert torch.isfinite(workload.loss(output, sample))
