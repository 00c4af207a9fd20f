"""What the keys of the optimizer change, of one weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aorta.workloads.trainer.optim import Updater
from aorta.workloads.trainer.weights import Whole
from tests.workloads.trainer.tiny import tiny

CPU = torch.device("cpu")


def updates(folder: Path, gradients: list[float], *overrides: str) -> list[float]:
    """A weight that begins at 1, after each update."""
    weight = nn.Parameter(torch.ones(1))
    config = tiny(folder, "optimizer.lr=0.1", "training.grad_clip_norm=0", *overrides)
    updater = Updater(Whole(nn.ParameterList([weight])), config, CPU)
    found = []
    for gradient in gradients:
        updater.backward((weight * gradient).sum())
        updater.update()
        found.append(weight.item())
    return found


def test_weights_decay_by_their_share_of_the_rate(tmp_path: Path) -> None:
    constant = ["scheduler.warmup_steps=1", "scheduler.total_steps=1000000"]
    # without gradients only the decay is left: 1 - 0.1 × 0.5, twice
    found = updates(tmp_path, [0.0, 0.0], "optimizer.weight_decay=0.5", *constant)
    assert found == pytest.approx([0.95, 0.95**2])
    assert updates(tmp_path, [0.0], "optimizer.weight_decay=0", *constant) == [1.0]


def test_betas_are_the_memory_of_the_optimizer(tmp_path: Path) -> None:
    constant = ["scheduler.warmup_steps=1", "scheduler.total_steps=1000000", "optimizer.weight_decay=0"]
    # without memory each update is the rate against the gradient's sign
    found = updates(tmp_path, [1.0, -3.0], "optimizer.betas=[0.0,0.0]", *constant)
    assert found == pytest.approx([0.9, 1.0], abs=1e-6)
    # else it is the mean of both over the root of their mean square, the later one weighing twice as much
    found = updates(tmp_path, [1.0, -3.0], "optimizer.betas=[0.5,0.5]", *constant)
    mean, square = (0.25 - 1.5) / 0.75, (0.25 + 4.5) / 0.75
    assert found == pytest.approx([0.9, 0.9 - 0.1 * mean / square**0.5], abs=1e-6)


@pytest.mark.parametrize(("limit", "left"), [(1.0, 1.0), (10.0, 5.0), (0.0, 5.0)])
def test_gradients_are_clipped_to_the_norm(tmp_path: Path, limit: float, left: float) -> None:
    weight = nn.Parameter(torch.zeros(2))
    updater = Updater(
        Whole(nn.ParameterList([weight])), tiny(tmp_path, f"training.grad_clip_norm={limit}"), CPU
    )
    seen: list[float] = []
    updater._optimizer.register_step_pre_hook(lambda *_: seen.append(float(weight.grad.norm())))  # type: ignore[union-attr]
    updater.backward((weight * torch.tensor([3.0, 4.0])).sum())
    updater.update()
    assert seen == pytest.approx([left], rel=1e-5)  # 3-4-5
