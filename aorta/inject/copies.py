"""Copies from the host to a GPU: `Tensor.to` and `Tensor.cuda`, where the program calls them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from aorta.inject.driver import Driver


def watch_copies(driver: Driver) -> None:
    """Note the calls in steps that are timed part by part. A call of a tensor on a GPU passes at once."""
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _around(getattr(torch.Tensor, name), driver))


def _around(original: Any, driver: Driver) -> Any:
    compiling = torch.compiler.is_compiling
    watched = driver.hooks.around("copy", original, lambda *_: driver.copy_begins(), driver.copy_ended)

    @functools.wraps(original)
    def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or not driver.detailed or tensor.is_cuda:
            return original(tensor, *args, **kwargs)
        return watched(tensor, *args, **kwargs)

    return wrapper
