"""The faults that the runs put in, and work that takes time without a core: two cores serve all ranks."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

FAULT = os.environ.get("FAULT", "clean")
RANK = int(os.environ.get("RANK", "0"))
STEPS = int(os.environ.get("STEPS", "90"))
COMPUTE_S, LOADER_S, HOST_S = 0.03, 0.04, 0.03
SLOWER = 2.3
COUNTED = os.environ.get("STEPS_SEEN")
"""File into which rank 0 writes time and number of every tenth step."""
_numbers = itertools.count(1)


def preprocess() -> None:
    """Host work between two steps, on the rank that has the fault."""
    count()
    if FAULT == "host" and RANK == 1:
        time.sleep(HOST_S)


def count() -> None:
    """Count a step."""
    number = next(_numbers)
    if COUNTED is not None and RANK == 0 and number % 10 == 0:
        with Path(COUNTED).open("a") as stream:
            stream.write(f"{time.time()} {number}\n")


def fetch(batch: int) -> None:
    """One sample out of a batch of so many, slow on the rank that has the fault."""
    if FAULT == "loader" and RANK == 1:
        time.sleep(LOADER_S / batch)


class _Takes(torch.autograd.Function):
    """The identity, which takes time in both directions."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds / 3)
        return gradient, None


class Takes(nn.Module):
    """A layer that takes `COMPUTE_S` per step and no core."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.seconds = COMPUTE_S * share * (SLOWER if FAULT == "rank" and RANK == 1 else 1.0)

    def forward(self, x):
        return _Takes.apply(x, self.seconds)


class Rows(Dataset):
    """Rows of random numbers, with a number as the target."""

    def __init__(self, count: int, width: int = 16, batch: int = 8) -> None:
        self.count, self.width, self.batch = count, width, batch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        fetch(self.batch)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.width, generator=generator), torch.randn(1, generator=generator)
