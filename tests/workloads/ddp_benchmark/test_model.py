"""The transformer, its tokens, and the schedule."""

from __future__ import annotations

import math

import pytest
import torch

from aorta.workloads.ddp_benchmark.model import LanguageModel, Rotary, loss_of, parameter_count, token_batches
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.training import BASE_RATE, epoch_type, learning_rate

TINY = BenchmarkOptions(
    vocab_size=13, context_length=6, d_model=8, num_layers=2, num_heads=2, d_ff=12, batch_size=3
)
CPU = torch.device("cpu")


def test_rotary_turns_the_first_pair_by_one_radian_a_token() -> None:
    # Width 4, theta 100: pair 0 turns by position × 1, pair 1 by position × 100^(−2/4) = position / 10.
    turned = Rotary(4, 3, 100.0)(torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 1, 3, 4))
    for position in range(3):
        expected = [f(position / scale) for f in (math.cos, math.sin) for scale in (1, 10)]
        assert turned[0, 0, position].tolist() == pytest.approx(expected, abs=1e-6)


def test_rotary_products_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    rotary = Rotary(8, 10, 50.0)
    query, key = torch.randn(2, 8)
    queries, keys = (rotary(value.expand(1, 1, 10, 8))[0, 0] for value in (query, key))
    products = queries @ keys.T
    for distance in range(10):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5)
    assert not torch.allclose(products[0], products[0, :1].expand(10))


def test_a_later_token_does_not_change_earlier_logits() -> None:
    torch.manual_seed(0)
    model = LanguageModel(TINY)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    before, tokens[0, 4] = model(tokens), 9
    after = model(tokens)
    assert torch.allclose(before[0, :4], after[0, :4], atol=1e-6)
    assert not torch.allclose(before[0, 4:], after[0, 4:], atol=1e-6)


@pytest.mark.parametrize("options", [TINY, BenchmarkOptions()], ids=["tiny", "default"])
def test_the_count_of_parameters_is_that_of_the_model(options: BenchmarkOptions) -> None:
    with torch.device("meta"):
        model = LanguageModel(options)
    assert parameter_count(options) == sum(value.numel() for value in model.parameters())


def test_the_model_has_no_buffers_that_ddp_would_broadcast() -> None:
    assert list(LanguageModel(TINY).buffers()) == []


def test_tokens_are_a_function_of_seed_and_rank() -> None:
    first, again, other = (token_batches(TINY, rank, CPU) for rank in (0, 0, 1))
    assert first[0].shape == (3, 7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert min(int(batch.min()) for batch in first) >= 0
    assert max(int(batch.max()) for batch in first) < 13


def test_loss_of_even_logits_is_the_logarithm_of_the_vocabulary() -> None:
    tokens = torch.zeros(2, 7, dtype=torch.int64)
    assert float(loss_of(torch.zeros(2, 6, 13), tokens)) == pytest.approx(math.log(13))


def test_the_rate_rises_from_zero_and_stays() -> None:
    # 2 warm-up epochs of 2 steps.
    rates = [learning_rate(step, 4) for step in range(7)]
    assert rates == pytest.approx([0, BASE_RATE / 4, BASE_RATE / 2, 3 * BASE_RATE / 4, *[BASE_RATE] * 3])
    assert learning_rate(0, 0) == BASE_RATE == 1e-3
    assert [epoch_type(epoch, BenchmarkOptions(warmup_epochs=1)) for epoch in (0, 1)] == [
        "warmup",
        "training",
    ]
