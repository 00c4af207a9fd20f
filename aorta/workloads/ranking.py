"""The ranking workload: which items does a user click, given a history of items and some context?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import Dataset

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.workloads.trainer.data import RankingSamples, check_size
from aorta.workloads.trainer.workload import Batch, Validation


class RankingModel(nn.Module):
    """A transformer over a history of items.

    Item and context ids share one table (vocab_size × embedding_dim). Each context id is weighed by a
    vector of its own field and averaged; dense features go through an MLP each (dense_dim to model_dim),
    weighed by feature. Both are added to every token of the history. The stack is norm-first; the mean of
    its tokens gives one logit per sample.

    Args:
        config: sizes of the model.
        sequence_length: tokens of a history.
        sparse_features: context ids of a sample.
    """

    def __init__(self, config: schema.ModelConfig, sequence_length: int, sparse_features: int) -> None:
        super().__init__()
        width = config.model_dim
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.field = nn.Parameter(torch.ones(sparse_features, config.embedding_dim))
        self.item = nn.Linear(config.embedding_dim, width)
        self.context = nn.Linear(config.embedding_dim, width)
        self.dense = nn.Sequential(nn.Linear(config.dense_dim, width), nn.GELU(), nn.Linear(width, width))
        self.feature = nn.Parameter(torch.ones(config.num_dense_features, 1))
        self.position = nn.Parameter(torch.zeros(sequence_length, width))
        layer = nn.TransformerEncoderLayer(
            width,
            config.num_heads,
            dim_feedforward=config.mlp_hidden_dim,
            dropout=config.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of shape (batch,)."""
        context = self.context((self.embedding(batch["sparse"]) * self.field).mean(dim=1))
        dense = (self.dense(batch["dense"]) * self.feature).mean(dim=1)
        tokens = self.item(self.embedding(batch["history"])) + self.position
        tokens = tokens + (context + dense).unsqueeze(1)
        pooled = self.norm(self.encoder(tokens)).mean(dim=1)
        logits: torch.Tensor = self.head(pooled).squeeze(1)
        return logits


class Ranking:
    """The ranking model on synthetic clicks.

    Raises:
        ConfigError: model and data set do not fit each other; names both keys.
    """

    def __init__(self, config: schema.Config) -> None:
        model, data = config.model, config.dataset
        if model.vocab_size < data.vocab_size:
            raise ConfigError(
                f"model.vocab_size is {model.vocab_size}, below dataset.vocab_size {data.vocab_size}",
                "raise model.vocab_size to at least dataset.vocab_size: each id needs a row",
            )
        for key in ("dense_dim", "num_dense_features"):
            if getattr(model, key) != getattr(data, key):
                raise ConfigError(
                    f"model.{key} is {getattr(model, key)}, dataset.{key} is {getattr(data, key)}",
                    "set both to the same number",
                )
        if model.model_dim % model.num_heads:
            raise ConfigError(
                f"model.model_dim is {model.model_dim}: not a multiple of model.num_heads {model.num_heads}",
                "choose a model.model_dim that is a multiple of model.num_heads",
            )
        self._config = config

    def dataset(self) -> Dataset[dict[str, torch.Tensor]]:
        """`RankingSamples` of the configuration."""
        return RankingSamples(self._config.dataset)

    def model(self) -> nn.Module:
        """`RankingModel` of the configuration."""
        data = self._config.dataset
        return RankingModel(self._config.model, data.sequence_length, data.sparse_features)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The layers of the transformer."""
        assert isinstance(model, RankingModel)
        return list(model.encoder.layers)

    def check(self, ranks: int) -> None:
        """See `check_size`."""
        check_size(self._config, ranks)

    def validation(self) -> Validation | None:
        """Returns None: samples are drawn at random, so validating on others would tell nothing new."""
        return None

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Binary cross-entropy of the clicks, in fp32 whatever the autocast type."""
        return nn.functional.binary_cross_entropy_with_logits(output.float(), batch["label"])
