from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from aorta.errors import ConfigError
from aorta.workloads.ranking import Ranking
from tests.workloads.trainer.tiny import tiny


def test_one_logit_a_sample_and_every_weight_in_use(tmp_path: Path) -> None:
    workload = Ranking(tiny(tmp_path))
    model, data = workload.model(), workload.dataset()
    batch = default_collate([data[index] for index in range(3)])
    output = model(batch)
    assert output.shape == (3,)
    loss = workload.loss(output, batch)
    assert loss.shape == ()
    loss.backward()
    # DDP raises on a parameter without a gradient.
    assert [name for name, value in model.named_parameters() if value.grad is None] == []


def test_the_loss_is_the_cross_entropy_of_a_coin_at_logit_zero(tmp_path: Path) -> None:
    batch = {"label": torch.tensor([0.0, 1.0])}
    loss = Ranking(tiny(tmp_path)).loss(torch.zeros(2, dtype=torch.bfloat16), batch)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.vocab_size=49", "model.vocab_size is 49, below dataset.vocab_size 50"),
        ("model.dense_dim=5", "model.dense_dim is 5, dataset.dense_dim is 4"),
        ("dataset.num_dense_features=3", "model.num_dense_features is 2, dataset.num_dense_features is 3"),
        ("model.num_heads=3", "model.model_dim is 8: not a multiple of model.num_heads 3"),
    ],
)
def test_model_and_data_that_do_not_fit(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Ranking(tiny(tmp_path, override))
