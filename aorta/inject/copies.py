"""Copies from the host to a GPU: `Tensor.to` and `Tensor.cuda`, where the program calls them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from aorta.inject.driver import Driver

_NAMES = ("to", "cuda")


class CopyHooks:
    """The hooks on copies. They are in place only while steps are timed part by part.

    Programs call these methods often, and of tensors that are on the GPU already.

    Args:
        driver: is told of copies.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._replaced: dict[str, tuple[Any, Any]] = {}
        """The attribute that the class had under a name (None: a class above has it), and the one that is
        there now."""

    def watch(self, on: bool) -> None:
        """Put the hooks in place, or take them out. What another library has put over them stays."""
        for name in _NAMES:
            kept = self._replaced.get(name)
            if on and kept is None:
                own = vars(torch.Tensor).get(name)
                put = self._around(getattr(torch.Tensor, name))
                setattr(torch.Tensor, name, put)
                self._replaced[name] = own, put
            elif not on and kept is not None and getattr(torch.Tensor, name) is kept[1]:
                if kept[0] is None:
                    delattr(torch.Tensor, name)
                else:
                    setattr(torch.Tensor, name, kept[0])
                del self._replaced[name]

    def _around(self, original: Any) -> Any:
        compiling, driver = torch.compiler.is_compiling, self._driver
        watched = driver.hooks.around(
            "copy", original, lambda *_, **__: driver.copy_begins(), driver.copy_ended
        )

        @functools.wraps(original)
        def wrapper(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if compiling() or not driver.detailed or tensor.is_cuda:
                return original(tensor, *args, **kwargs)
            return watched(tensor, *args, **kwargs)

        return wrapper
