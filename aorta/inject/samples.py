"""Counts the samples of a batch, as far as its tensors tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_DEPTH = 4


def first_size(batch: Any, depth: int = _DEPTH) -> int | None:
    """Return the length of the first tensor in `batch` that has one; None where there is none.

    Args:
        batch: a tensor, or tuples, lists and mappings of tensors.
        depth: how deep to look.
    """
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else None
    if depth == 0:
        return None
    if isinstance(batch, (tuple, list)):
        values = batch
    elif isinstance(batch, (dict, Mapping)):  # the builtin first: the abstract class takes long to ask
        values = list(batch.values())
    else:
        return None
    for value in values:
        size = first_size(value, depth - 1)
        if size is not None:
            return size
    return None
