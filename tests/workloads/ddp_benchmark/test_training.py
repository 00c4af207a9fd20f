"""Rate and clipping over the steps of a run, in a process group of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.training import BenchmarkTraining
from aorta.workloads.trainer.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield World(0, 0, 1, 0, torch.device("cpu"), None)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["ddp", "ddp_bucketed"])
def test_the_rate_rises_and_gradients_are_clipped_in_warm_up_epochs_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = BenchmarkOptions(
        vocab_size=23, context_length=6, d_model=8, num_layers=1, num_heads=2, d_ff=12, batch_size=3,
        num_epochs=3, warmup_epochs=2, steps_per_epoch=2,
    )  # fmt: skip
    training = BenchmarkTraining(name, options, world)
    norms: list[float] = []
    rates: list[float] = []
    update = torch.optim.AdamW.step

    def large(model: nn.Module) -> None:
        """Gradients a thousand times too large, as clipping and the optimizer find them."""
        for value in model.parameters():
            if value.grad is not None:
                value.grad.mul_(1000)

    def seen(self: torch.optim.AdamW) -> None:
        gradients = [value.grad for value in training.model.parameters() if value.grad is not None]
        norms.append(float(torch.linalg.vector_norm(torch.stack([value.norm() for value in gradients]))))
        rates.append(self.param_groups[0]["lr"])
        update(self)

    finish = training._implementation.finish
    monkeypatch.setattr(training._implementation, "finish", lambda: (finish(), large(training.model)))
    monkeypatch.setattr(torch.optim.AdamW, "step", seen)
    for step in range(options.total_steps):
        training.update(step)
    assert rates == pytest.approx([0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
    assert norms[:4] == pytest.approx([1.0] * 4, rel=1e-3)
    assert min(norms[4:]) > 10
