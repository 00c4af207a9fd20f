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
    @functools.wraps(original)
    def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if "copy" in driver.hooks.off or torch.compiler.is_compiling() or tensor.is_cuda:
            return original(tensor, *args, **kwargs)
        token = driver.hooks.call("copy", driver.copy_begins)
        if token is None:
            return original(tensor, *args, **kwargs)
        result = original(tensor, *args, **kwargs)
        driver.hooks.call("copy", driver.copy_ended, token, result)
        return result

    return wrapper
