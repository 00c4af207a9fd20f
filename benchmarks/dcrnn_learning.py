"""Does DCRNN learn? Its errors on the test part against forecasts that need no model.

    python benchmarks/dcrnn_learning.py [--steps 1000] [--sensors 16] [--json FILE]

Trains on generated traffic, whose dynamics are known, by the trainer's own command line, and prints masked
MAE, RMSE and MAPE by horizon beside those of the historical average and the last value; and of the same model
on a graph without edges, which shows what the graph is worth. On the CPU, a few minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from aorta.artefacts.layout import RunDir
from aorta.config.load import load_config
from aorta.workloads.dcrnn.data import Samples
from aorta.workloads.dcrnn.metrics import error_sums, errors
from aorta.workloads.dcrnn.traffic import PER_DAY, generate
from aorta.workloads.dcrnn.workload import DcrnnWorkload

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.baselines import HistoricalAverage, last_value

HORIZONS = (3, 6, 12)
"""15, 30 and 60 minutes."""
DAYS = 28
BATCH = 32


def settings(folder: Path, graph: str, steps: int, seed: int) -> list[str]:
    """Overrides for a small network on the traffic in `folder`."""
    epochs = -(-steps // (int(0.7 * DAYS * PER_DAY - 23) // BATCH))
    return [
        "workload=dcrnn",
        "distributed.strategy=ddp",
        f"training.output_dir={folder / graph}",
        f"training.seed={seed}",
        f"training.epochs={epochs}",
        f"training.max_steps={steps}",
        f"training.checkpoint_interval={epochs}",
        f"training.batch_size={BATCH}",
        "training.mixed_precision=none",
        "training.grad_clip_norm=5",
        "training.log_interval=100",
        "training.device=cpu",
        "optimizer.lr=0.01",
        "optimizer.weight_decay=1e-5",
        "scheduler.warmup_steps=20",
        f"scheduler.total_steps={steps}",
        "dataloader.num_workers=0",
        f"dcrnn.data={folder / 'readings.npz'}",
        f"dcrnn.adjacency={folder / graph}.npy",
        "dcrnn.pred_len=12",
        "dcrnn.hidden_dim=16",
        "dcrnn.dropout=0",
        f"dcrnn.sampling_decay={steps / 10}",
    ]


def write_traffic(folder: Path, sensors: int, seed: int) -> None:
    """Readings with their times, the graph, and one without edges."""
    traffic = generate(sensors, DAYS * PER_DAY, seed)
    clock = np.datetime64("2024-01-01") + np.arange(DAYS * PER_DAY) * np.timedelta64(5, "m")
    np.savez(folder / "readings.npz", readings=traffic.readings, timestamps=clock)
    np.save(folder / "graph.npy", traffic.weights)
    np.save(folder / "edgeless.npy", np.eye(sensors, dtype=np.float32))


def train(overrides: list[str]) -> tuple[DcrnnWorkload, torch.nn.Module]:
    """Train by the command line; the model is read back from its last checkpoint."""
    subprocess.run([sys.executable, "-m", "aorta.workloads.trainer", "--override", *overrides], check=True)
    config = load_config(None, overrides)
    workload = DcrnnWorkload(config)
    model = workload.model()
    saved = RunDir(Path(config.training.output_dir)).checkpoint(config.training.epochs - 1)
    model.load_state_dict(torch.load(saved, weights_only=True)["model"])
    return workload, model.eval()


@torch.no_grad()
def judge(workload: DcrnnWorkload, model: torch.nn.Module, lone: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Sums of errors (horizon, 5) on the test part, of each forecast."""
    data = workload.data
    assert isinstance(data.train, Samples)
    average = HistoricalAverage(data.train, PER_DAY)
    found: dict[str, torch.Tensor] = {}
    for batch in DataLoader(data.test, batch_size=256):
        target, history = batch["target"], batch["history"]
        forecasts = {
            "DCRNN": model(batch),
            "DCRNN without edges": lone(batch),
            "last value": last_value(history, target.shape[1], data.mean),
            "historical average": average.forecast(history, target.shape[1]),
        }
        for name, forecast in forecasts.items():
            sums = error_sums(forecast, target).sum(dim=0)
            found[name] = found[name] + sums if name in found else sums
    return found


def main() -> None:
    """Train twice, judge, print."""
    flags = argparse.ArgumentParser(description="DCRNN against simple forecasts")
    flags.add_argument("--steps", type=int, default=1000)
    flags.add_argument("--sensors", type=int, default=16)
    flags.add_argument("--seed", type=int, default=42)
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_traffic(folder, given.sensors, given.seed)
        start = time.perf_counter()
        workload, model = train(settings(folder, "graph", given.steps, given.seed))
        seconds = time.perf_counter() - start
        _, lone = train(settings(folder, "edgeless", given.steps, given.seed))
        found = judge(workload, model, lone)
    rows = [
        {"forecast": name, "minutes": 5 * horizon, **errors(sums[horizon - 1])}
        for name, sums in found.items()
        for horizon in HORIZONS
    ]
    print(f"{given.sensors} sensors, {given.steps} steps in {seconds:.0f} s; torch {torch.__version__}")
    print(f"{'test part':22}{'minutes':>8}{'MAE':>8}{'RMSE':>8}{'MAPE %':>8}")
    for row in rows:
        print(
            f"{row['forecast']:22}{row['minutes']:>8}{row['mae']:>8.2f}{row['rmse']:>8.2f}{row['mape']:>8.1f}"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
