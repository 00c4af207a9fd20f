"""What the loop needs to know about a workload, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import torch
from torch import nn
from torch.utils.data import Dataset

Batch: TypeAlias = Mapping[str, torch.Tensor]
"""Named tensors whose first dimension is the sample."""


class Workload(Protocol):
    """A model, its data and its loss. Building either must depend on the configuration alone, so that every
    rank builds the same."""

    def dataset(self) -> Dataset[dict[str, torch.Tensor]]:
        """Map-style samples: index to named tensors without a batch dimension."""

    def model(self) -> nn.Module:
        """The model on the CPU, called with a batch."""

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch, a scalar."""
