from __future__ import annotations

import pytest
import torch

from aorta.workloads.dcrnn.metrics import columns, error_sums, errors, masked_mae, summarise

NAN = torch.nan


def test_missing_readings_count_nowhere_and_zeros_do() -> None:
    forecast = torch.tensor([[[1.0, 5.0]]])
    assert float(masked_mae(forecast, torch.tensor([[[3.0, NAN]]]))) == 2.0
    assert float(masked_mae(forecast, torch.tensor([[[3.0, 0.0]]]))) == (2 + 5) / 2


def test_a_batch_without_readings_has_no_loss_and_no_gradient() -> None:
    forecast = torch.ones(1, 1, 2, requires_grad=True)
    loss = masked_mae(forecast, torch.full((1, 1, 2), NAN))
    loss.backward()
    assert loss.item() == 0
    assert forecast.grad is not None
    assert forecast.grad.tolist() == [[[0.0, 0.0]]]


def test_errors_by_hand() -> None:
    forecast = torch.tensor([[[8.0, 5.0, 1.0]], [[10.0, 2.0, 0.0]]])
    target = torch.tensor([[[10.0, NAN, 4.0]], [[10.0, 0.0, NAN]]])
    sums = error_sums(forecast, target)
    assert sums.shape == (2, 1, 5)
    found = errors(sums.sum(dim=(0, 1)))
    assert found["mae"] == pytest.approx((2 + 3 + 0 + 2) / 4)
    assert found["rmse"] == pytest.approx(((4 + 9 + 0 + 4) / 4) ** 0.5)
    # A reading of 0 has no relative error.
    assert found["mape"] == pytest.approx(100 * (2 / 10 + 3 / 4 + 0) / 3)


def test_nothing_to_judge_is_left_out_and_a_perfect_forecast_is_zero() -> None:
    assert errors(torch.zeros(5)) == {}
    perfect = error_sums(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).sum(dim=(0, 1))
    assert errors(perfect) == {"mae": 0.0, "rmse": 0.0, "mape": 0.0}
    zeros = error_sums(torch.ones(1, 1, 1), torch.zeros(1, 1, 1)).sum(dim=(0, 1))
    assert errors(zeros) == {"mae": 1.0, "rmse": 1.0}


def test_horizons_apart_and_together() -> None:
    sums = error_sums(torch.tensor([[[1.0], [4.0]]]), torch.tensor([[[2.0], [2.0]]])).sum(dim=0)
    found = summarise(sums)
    assert found["val_mae_h1"] == 1.0
    assert found["val_mae_h2"] == 2.0
    assert found["val_mae"] == found["val_loss"] == 1.5
    assert found["val_mape"] == pytest.approx(100 * (1 / 2 + 2 / 2) / 2)
    assert set(found) == {"val_loss", "val_mae", "val_rmse", *columns(2)}
