"""Masked errors: a reading that is missing counts nowhere.

Errors are kept as sums, so that those of samples and ranks add up exactly to those of the whole.
"""

from __future__ import annotations

import torch

COUNT, ABSOLUTE, SQUARE, SHARES, RELATIVE = range(5)
"""Columns of the sums: readings, Σ|e|, Σe², readings that are not 0, and Σ|e/y| over those."""


def masked_mae(forecast: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean absolute error in fp32 over the readings that are there (target not NaN), of any equal shapes; 0
    where none is.
    """
    observed = ~torch.isnan(target)
    error = (forecast.float() - torch.where(observed, target, 0)).abs() * observed
    return error.sum() / observed.sum().clamp(min=1)


def error_sums(forecast: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The sums of each sample and horizon: (batch, horizon, N) twice to (batch, horizon, 5), float64."""
    observed = ~torch.isnan(target)
    truth = torch.where(observed, target, 0).double()
    error = (forecast.double() - truth).abs() * observed
    nonzero = truth != 0
    relative = torch.where(nonzero, error / torch.where(nonzero, truth, 1).abs(), 0)
    parts = (observed.double(), error, error.square(), nonzero.double(), relative)
    return torch.stack([part.sum(dim=-1) for part in parts], dim=-1)


def errors(sums: torch.Tensor) -> dict[str, float]:
    """`mae`, `rmse` and `mape` (in percent) of sums (5,); left out where there is no reading."""
    count, absolute, square, shares, relative = sums.tolist()
    found: dict[str, float] = {}
    if count:
        found |= {"mae": absolute / count, "rmse": (square / count) ** 0.5}
    if shares:
        found["mape"] = 100.0 * relative / shares
    return found


def columns(horizon: int) -> tuple[str, ...]:
    """Names of what `summarise` finds, beyond the documented ones."""
    each = [f"val_{name}_h{step + 1}" for step in range(horizon) for name in ("mae", "rmse", "mape")]
    return ("val_mape", *each)


def summarise(sums: torch.Tensor) -> dict[str, float]:
    """`val_loss` (the masked MAE), `val_mae`, `val_rmse` and `val_mape` over all horizons, and
    `val_<name>_h<k>` of each, from sums (horizon, 5).
    """
    found = {f"val_{name}": value for name, value in errors(sums.sum(dim=0)).items()}
    if "val_mae" in found:
        found["val_loss"] = found["val_mae"]
    for step, row in enumerate(sums):
        found |= {f"val_{name}_h{step + 1}": value for name, value in errors(row).items()}
    return found
