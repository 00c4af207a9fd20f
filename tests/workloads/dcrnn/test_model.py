"""The cell against its equations, gradients against finite differences, and scheduled sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from aorta.workloads.dcrnn.graph import Diffusion, Form
from aorta.workloads.dcrnn.metrics import masked_mae
from aorta.workloads.dcrnn.model import DCRNN, DCGRUCell, DcrnnSizes, DiffusionConvolution

WEIGHTS = np.array([[0, 3, 1], [0, 1, 2], [2, 0, 0]], dtype=np.float32)
FORMS: tuple[Form, ...] = ("dense", "sparse")


def sizes(**changed: Any) -> DcrnnSizes:
    plain: dict[str, Any] = {
        "channels": 2,
        "horizon": 2,
        "hidden": 3,
        "layers": 2,
        "dropout": 0.0,
        "sampling_decay": 2.0,
    }
    return DcrnnSizes(**(plain | changed))


def model(form: Form = "dense", weights: np.ndarray = WEIGHTS, **changed: Any) -> DCRNN:
    torch.manual_seed(0)
    return DCRNN(Diffusion(weights, 2, form), sizes(**changed), 50.0, 10.0)


def batch(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    history = torch.rand(2, 3, 3, 2, generator=source, dtype=dtype)
    history[..., 0] = 40 + 20 * history[..., 0]
    return {"history": history, "target": 40 + 20 * torch.rand(2, 2, 3, generator=source, dtype=dtype)}


def test_the_convolution_by_hand() -> None:
    convolution = DiffusionConvolution(terms=3, inputs=1, outputs=1, bias=5.0)
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([[2.0], [3.0], [7.0]]))
    weights = np.array([[0, 1], [0, 0]], dtype=np.float32)
    result = convolution(Diffusion(weights, 1, "dense"), torch.tensor([1.0, 10.0]).reshape(2, 1, 1))
    # 0 sees 1 along the edge, 1 sees 0 against it.
    assert result.flatten().tolist() == [2 * 1 + 3 * 10 + 5, 2 * 10 + 7 * 1 + 5]


def test_the_cell_is_a_gated_unit_of_convolutions() -> None:
    torch.manual_seed(0)
    diffusion, cell = Diffusion(WEIGHTS, 1, "dense"), DCGRUCell(terms=3, inputs=1, hidden=1)
    x, h = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.3, -0.1, 0.8])
    state = cell(diffusion, x.reshape(3, 1, 1), h.reshape(3, 1, 1)).flatten()
    walks = [np.eye(3), WEIGHTS / WEIGHTS.sum(1)[:, None], WEIGHTS.T / WEIGHTS.T.sum(1)[:, None]]

    def convolve(convolution: DiffusionConvolution, output: int, state: np.ndarray) -> np.ndarray:
        theta = convolution.weight.detach().numpy().reshape(3, 2, -1)[:, :, output]
        total = sum(walk @ (x.numpy() * a + state * b) for walk, (a, b) in zip(walks, theta, strict=True))
        return np.asarray(total) + convolution.bias.detach().numpy()[output]

    reset, update = (1 / (1 + np.exp(-convolve(cell.gates, gate, h.numpy()))) for gate in (0, 1))
    candidate = np.tanh(convolve(cell.candidate, 0, reset * h.numpy()))
    expected = update * h.numpy() + (1 - update) * candidate
    np.testing.assert_allclose(state.detach().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_agree_with_finite_differences(form: Form) -> None:
    net = model(form).double().eval()
    data = batch(torch.float64)
    names = ["encoder.cells.0.gates.weight", "decoder.cells.1.candidate.weight", "project.weight"]
    parameters = [net.get_parameter(name) for name in names]

    def loss(history: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        replaced = dict(zip(names, values, strict=True))
        output = torch.func.functional_call(net, replaced, ({**data, "history": history},))
        return (output - data["target"]).square().mean()

    history = data["history"].clone().requires_grad_()
    # The fast mode compares a random projection of all derivatives: a wrong one shows, for a few passes.
    inputs = (history, *[p.detach().clone().requires_grad_() for p in parameters])
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


@pytest.mark.parametrize("form", FORMS)
def test_the_order_of_the_sensors_does_not_matter(form: Form) -> None:
    order = [2, 0, 1]
    data = batch()
    plain = model(form).eval()(data)
    moved = model(form, weights=WEIGHTS[np.ix_(order, order)]).eval()
    torch.testing.assert_close(moved({"history": data["history"][:, :, order]}), plain[:, :, order])


def test_a_forecast_has_the_unit_of_the_readings_and_no_sight_of_the_truth() -> None:
    net = model().eval()
    data = batch()
    forecast = net(data).detach()
    assert forecast.shape == (2, 2, 3)
    assert 20 < float(forecast.min()) <= float(forecast.max()) < 80
    torch.testing.assert_close(net({"history": data["history"]}), forecast)
    assert float(net.get_buffer("batches")) == 0


def test_a_missing_reading_is_the_mean() -> None:
    net = model().eval()
    missing, mean = batch(), batch()
    missing["history"][0, 1, 2, 0] = torch.nan
    mean["history"][0, 1, 2, 0] = 50.0
    torch.testing.assert_close(net(missing), net(mean))
    zero = batch()
    zero["history"][0, 1, 2, 0] = 0.0  # a measured 0 is not the mean
    assert not torch.allclose(net(zero), net(mean))


def draws(value: float) -> Callable[..., torch.Tensor]:
    return lambda *shape, device=None: torch.full(shape, value, device=device)


def test_the_decoder_is_shown_the_truth_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    # tau 2: at batch 0 it is shown with probability 2/3, after 2 batches with 2/(2+e).
    net = model(horizon=2)
    probability = [2 / (2 + math.exp(i / 2)) for i in range(3)]
    data = batch()
    blind = net.eval()(data)
    net.train()
    monkeypatch.setattr("aorta.workloads.dcrnn.model.torch.rand", draws(0.5))
    shown = [not torch.allclose(net(data)[:, 1], blind[:, 1]) for _ in range(3)]
    assert shown == [p > 0.5 for p in probability] == [True, True, False]
    assert float(net.get_buffer("batches")) == 3


def test_a_truth_that_is_missing_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = model(), batch()
    blind = net.eval()(data)
    monkeypatch.setattr("aorta.workloads.dcrnn.model.torch.rand", draws(0.0))
    net.train()
    torch.testing.assert_close(net({**data, "target": torch.full((2, 2, 3), torch.nan)}), blind)
    assert not torch.allclose(net({**data, "target": torch.zeros(2, 2, 3)}), blind)


def test_the_state_of_a_long_run_is_finite() -> None:
    net = model()
    net.get_buffer("batches").fill_(1e6)
    assert torch.isfinite(net(batch())).all()


def test_dropout_is_between_layers() -> None:
    data = batch()
    one, two = model(layers=1, dropout=0.5).train(), model(layers=2, dropout=0.5).train()
    for net in (one, two):
        net.get_buffer("batches").fill_(1e6)
    assert torch.equal(one(data), one(data))
    assert not torch.equal(two(data), two(data))


def test_half_precision_trains_with_both_forms() -> None:
    for form in FORMS:
        net, data = model(form), batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = masked_mae(net(data), data["target"])
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
        assert all(p.grad is not None for p in net.parameters())


def test_what_follows_from_the_graph_is_not_saved() -> None:
    for form in FORMS:
        saved = model(form).state_dict()
        assert {"mean", "deviation", "batches"} < saved.keys()
        assert not [name for name in saved if name.startswith("diffusion")]
