"""Everything that the loop needs to know about a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import nn
from torch.utils.data import Dataset

Batch: TypeAlias = Mapping[str, torch.Tensor]
"""Named tensors whose first dimension is the sample."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Validation of a workload after each epoch.

    Args:
        dataset: what it is judged on, as `Workload.dataset`.
        score: output and batch to one row per sample, of any shape, in float64; rows are added up over all
            samples of all ranks.
        summarise: the sum of all rows to columns of `metrics.csv`; what could not be measured is left out.
        columns: names that `summarise` uses beyond `METRICS_COLUMNS`.
    """

    dataset: Dataset[dict[str, torch.Tensor]]
    score: Callable[[torch.Tensor, Batch], torch.Tensor]
    summarise: Callable[[torch.Tensor], dict[str, float]]
    columns: tuple[str, ...] = ()


class Workload(Protocol):
    """A model, its data and its loss. Building either must depend on the configuration alone, so that every
    rank builds the same."""

    def dataset(self) -> Dataset[dict[str, torch.Tensor]]:
        """Map-style samples: index to named tensors without a batch dimension."""

    def model(self) -> nn.Module:
        """The model on the CPU, called with a batch."""

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The parts of `model` that are sharded each on its own, in the order of the forward pass; what is in
        none of them is sharded together. A part that runs several times in a pass would be gathered as often.
        """

    def check(self, ranks: int) -> None:
        """Refuse data that do not suffice for one step of `ranks` ranks.

        Raises:
            ConfigError: names what there is and what is needed.
        """

    def validation(self) -> Validation | None:
        """The validation after each epoch. None if there is none."""

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch, a scalar."""
