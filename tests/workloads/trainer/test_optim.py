from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aorta.workloads.trainer.optim import Updater, lr_factor
from aorta.workloads.trainer.weights import Whole
from tests.workloads.trainer.tiny import tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 1 / 4), (3, 1.0), (4, 1.0), (9, 0.5), (14, 0.0), (100, 0.0)]
)
def test_warmup_then_cosine(step: int, factor: float) -> None:
    assert lr_factor(step, warmup_steps=4, total_steps=14) == pytest.approx(factor)


def test_without_warmup_the_first_step_has_the_full_rate() -> None:
    assert lr_factor(0, warmup_steps=0, total_steps=10) == 1.0


def updater(tmp_path: Path, parameter: nn.Parameter, *overrides: str) -> Updater:
    return Updater(Whole(nn.ParameterList([parameter])), tiny(tmp_path, *overrides), CPU)


def test_the_norm_is_the_one_before_clipping(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    update = updater(tmp_path, parameter, "training.grad_clip_norm=1.0")
    update.backward((parameter * torch.tensor([3.0, 4.0])).sum())
    assert float(update.update() or 0) == pytest.approx(5.0)  # 3-4-5
    assert parameter.grad is None


def test_without_clipping_there_is_no_norm(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    update = updater(tmp_path, parameter, "training.grad_clip_norm=0")
    update.backward(parameter.sum())
    assert update.update() is None


def test_zero_gradients_have_a_measured_norm_of_zero(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    update = updater(tmp_path, parameter, "training.grad_clip_norm=1.0")
    update.backward((parameter * 0).sum())
    norm = update.update()
    assert norm is not None
    assert float(norm) == 0.0


def test_fp16_clips_unscaled_gradients(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    update = updater(tmp_path, parameter, "training.mixed_precision=fp16")
    update.backward((parameter * torch.tensor([3.0, 4.0])).sum())
    assert parameter.grad is not None
    assert float(parameter.grad.norm()) > 1000  # scaled
    assert float(update.update() or 0) == pytest.approx(5.0)


@pytest.mark.parametrize(("precision", "kind"), [("none", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast(tmp_path: Path, precision: str, kind: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    update = updater(tmp_path, parameter, f"training.mixed_precision={precision}")
    with update.autocast():
        assert (torch.ones(2, 2) @ parameter).dtype == kind


def test_the_rate_of_the_next_update(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    update = updater(tmp_path, parameter, "optimizer.lr=1.0", "scheduler.warmup_steps=2")
    rates = []
    for _ in range(2):
        rates.append(update.lr)
        update.backward(parameter.sum())
        update.update()
    assert rates == [0.5, 1.0]
