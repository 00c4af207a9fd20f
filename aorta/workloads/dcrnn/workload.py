"""The traffic workload: what will the sensors of a road network read next?"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import torch
from torch import nn
from torch.utils.data import Dataset

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.workloads.dcrnn.data import Split, split
from aorta.workloads.dcrnn.graph import Diffusion
from aorta.workloads.dcrnn.metrics import columns, error_sums, masked_mae, summarise
from aorta.workloads.dcrnn.model import DCRNN, DcrnnSizes
from aorta.workloads.trainer.workload import Batch, Validation

log = logging.getLogger(__name__)

USED_OF_DATASET = ("seed", "delay_ms")
"""Keys of the `dataset` block that mean something here."""


class DcrnnWorkload:
    """A diffusion convolutional recurrent network on a user's or on generated traffic.

    Raises:
        ConfigError: the configuration does not fit the data; names both.
        ArtefactError: a file of the data cannot be used.
    """

    def __init__(self, config: schema.Config) -> None:
        self._config = config
        self.data: Split = split(config)
        unused = [*_changed(config.model, "model"), *_changed(config.dataset, "dataset", USED_OF_DATASET)]
        if unused:
            log.warning("workload dcrnn ignores these keys: %s", ", ".join(unused))

    def check(self, ranks: int) -> None:
        """Every rank needs the samples of one optimizer step.

        Raises:
            ConfigError: the training part has fewer.
        """
        training = self._config.training
        needed = training.batch_size * training.gradient_accumulation * ranks
        if len(self.data.train) < needed:
            raise ConfigError(
                f"the training part of the traffic has {len(self.data.train)} windows: one step needs"
                f" {needed} (batch_size {training.batch_size} × gradient_accumulation"
                f" {training.gradient_accumulation} × {ranks} ranks)",
                "lower training.batch_size, or raise dcrnn.num_steps of generated traffic",
            )

    def dataset(self) -> Dataset[dict[str, torch.Tensor]]:
        """The training windows."""
        return self.data.train

    def model(self) -> nn.Module:
        """`DCRNN` of the configuration, on the data's graph."""
        chosen, data = self._config.dcrnn, self.data
        sizes = DcrnnSizes(
            channels=data.channels,
            horizon=chosen.pred_len,
            hidden=chosen.hidden_dim,
            layers=chosen.num_layers,
            dropout=chosen.dropout,
            sampling_decay=chosen.sampling_decay,
        )
        diffusion = Diffusion(data.weights, chosen.diffusion_steps, chosen.supports)
        return DCRNN(diffusion, sizes, data.mean, data.deviation)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Returns no blocks: its cells run once per time step."""
        del model
        return []

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Masked mean absolute error, in the unit of the readings."""
        return masked_mae(output, batch["target"])

    def validation(self) -> Validation | None:
        """Masked errors on the validation part, over all horizons and of each."""
        return Validation(
            dataset=self.data.validation,
            score=_score,
            summarise=summarise,
            columns=columns(self._config.dcrnn.pred_len),
        )


def _score(output: torch.Tensor, batch: Batch) -> torch.Tensor:
    return error_sums(output, batch["target"])


def _changed(block: schema.ConfigBlock, name: str, used: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name}.{item.name}={getattr(block, item.name)}"
        for item in msgspec.structs.fields(type(block))
        if item.name not in used and getattr(block, item.name) != item.default
    ]
