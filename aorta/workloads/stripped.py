"""A plain trainer with known faults and no instrumentation of its own: `stripped.py [faults.KEY=VALUE ...]`.

It is written as a user would write it, with torch alone. What is seen of it, `--instrument auto` sees.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 48
"""Steps of the trainer. The hooks learn from two of these steps."""
BATCH, WIDTH = 4, 16
STAND_IN = "stand_in_ms"
"""The compute of a step, slept on every rank."""
KNOWN = {STAND_IN, "compute_delay_ms", "comm_mb", "loader_delay_ms", "host_delay_ms"}
KNOWN |= {"compute_matmuls", "matmul_size"}


def faults_from(words: list[str], rank: int) -> dict[str, float]:
    """Return the faults of a rank, from words such as `faults.host_delay_ms=90` and `faults.ranks=[1]`."""
    pairs = [word.removeprefix("faults.").split("=", 1) for word in words]
    given: dict[str, Any] = {key: json.loads(value) for key, value in pairs}
    ranks = given.pop("ranks", None)
    unknown = given.keys() - KNOWN
    if unknown:
        raise SystemExit(f"this trainer has no faults.{min(unknown)}: it knows {', '.join(sorted(KNOWN))}")
    return {key: value for key, value in given.items() if not ranks or rank in ranks or key == STAND_IN}


def sleep_ms(milliseconds: float) -> None:
    """Take time and no core."""
    if milliseconds:
        time.sleep(milliseconds / 1000)


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random rows with a number as the target."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms / BATCH

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        sleep_ms(self.delay_ms)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), torch.randn(1, generator=generator)


class Model(nn.Module):
    """A small network whose forward pass takes the time of a larger one."""

    def __init__(self, faults: dict[str, float]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
        self.slept_ms = faults.get(STAND_IN, 60.0) + faults.get("compute_delay_ms", 0.0)
        self.products = int(faults.get("compute_matmuls", 0))
        size = int(faults.get("matmul_size", 1))
        self.square = torch.full((size, size), 1 / size)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a number per row."""
        sleep_ms(self.slept_ms)
        for _ in range(self.products):
            torch.mm(self.square, self.square)
        output: torch.Tensor = self.layers(rows)
        return output


def preprocess(milliseconds: float) -> None:
    """Stand for host work between the loader and the model."""
    sleep_ms(milliseconds)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    faults = faults_from(sys.argv[1:], int(os.environ["RANK"]))
    model: nn.Module = Model(faults)
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    extra = torch.zeros(int(faults.get("comm_mb", 0.0) * 2**20) // 4)
    for rows, targets in DataLoader(Rows(faults.get("loader_delay_ms", 0.0)), batch_size=BATCH):
        preprocess(faults.get("host_delay_ms", 0.0))
        loss = nn.functional.mse_loss(model(rows), targets)
        loss.backward()
        if len(extra):
            dist.all_reduce(extra)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
