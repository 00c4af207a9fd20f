"""Kernel, walks and diffusion against sums done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aorta.workloads.dcrnn.graph import Diffusion, Form, gaussian_kernel, transitions

# 0 -> 1 (3), 0 -> 2 (1), 1 -> 2 (2); nothing leaves 2 and nothing enters 0.
WEIGHTS = np.array([[0, 3, 1], [0, 0, 2], [0, 0, 0]], dtype=np.float32)


def test_the_walks_of_three_sensors() -> None:
    along, against = transitions(WEIGHTS)
    assert along.tolist() == [[0, 3 / 4, 1 / 4], [0, 0, 1], [0, 0, 0]]
    # In-degrees are 0, 3 and 1 + 2.
    assert against == pytest.approx(np.array([[0, 0, 0], [1, 0, 0], [1 / 3, 2 / 3, 0]]))


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_diffusion_by_hand(form: Form) -> None:
    signal = torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    diffused = Diffusion(WEIGHTS, 2, form)(signal).reshape(3, 5)
    once = [0.75 * 10 + 0.25 * 100, 100.0, 0.0]
    twice = [0.75 * 100, 0.0, 0.0]
    back = [0.0, 1.0, 1 / 3 + 20 / 3]
    back_twice = [0.0, 0.0, 2 / 3 * 1.0]
    expected = torch.tensor([[1.0, 10.0, 100.0], once, twice, back, back_twice]).T
    torch.testing.assert_close(diffused, expected)


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_batches_and_features_do_not_mix(form: Form) -> None:
    diffusion = Diffusion(WEIGHTS, 1, form)
    signal = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    whole = diffusion(signal)
    assert whole.shape == (3, 2, 3 * 4)
    for sample in range(2):
        for feature in range(4):
            alone = diffusion(signal[:, sample, feature].reshape(3, 1, 1)).reshape(3, 3)
            torch.testing.assert_close(whole[:, sample, feature::4], alone)


@given(seed=st.integers(0, 1000), nodes=st.integers(1, 6), steps=st.integers(1, 3))
def test_dense_and_sparse_are_the_same(seed: int, nodes: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    weights = (random.random((nodes, nodes)) * (random.random((nodes, nodes)) < 0.6)).astype(np.float32)
    signal = torch.from_numpy(random.standard_normal((nodes, 2, 3)).astype(np.float32))
    dense, sparse = (Diffusion(weights, steps, form)(signal) for form in ("dense", "sparse"))
    torch.testing.assert_close(dense, sparse, atol=1e-5, rtol=1e-5)


def test_a_constant_stays_constant_where_every_sensor_has_edges() -> None:
    weights = np.ones((4, 4), dtype=np.float32)
    diffused = Diffusion(weights, 3, "dense")(torch.full((4, 1, 1), 7.0))
    torch.testing.assert_close(diffused, torch.full((4, 1, 7), 7.0))


def test_the_kernel_by_hand() -> None:
    distances = np.array([[0.0, 2.0], [2.0, np.inf]])
    variance = ((0 - 4 / 3) ** 2 + 2 * (2 - 4 / 3) ** 2) / 3
    near = math.exp(-4 / variance)
    assert gaussian_kernel(distances, 0.0) == pytest.approx(np.array([[1, near], [near, 0]]))
    assert gaussian_kernel(distances, near * 1.01).tolist() == [[1, 0], [0, 0]]


def test_a_kernel_without_a_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="no scale"):
        gaussian_kernel(np.ones((2, 2)), 0.1)
