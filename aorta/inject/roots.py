"""The modules that a program calls itself, and the hook on their calls.

A hook in a module would be copied, pickled, scripted and compiled with it. So the class of each root module
gets a `__call__` that asks whether the module is one of the roots. Nothing of ours is in the module itself.
"""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from torch import nn

if TYPE_CHECKING:
    from aorta.inject.driver import Driver


class RootModules:
    """Finds the root modules and watches their calls.

    Args:
        driver: is told of the calls.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: set[int] = set()
        self._alive: WeakSet[nn.Module] = WeakSet()
        self._classes: set[type] = set()
        self.names: list[str] = []
        """Classes of the root modules."""

    def find(self) -> None:
        """Look for root modules among all objects."""
        modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
        below = {id(child) for one in modules for child in one.children()}
        found = [one for one in modules if id(one) not in below and _trains(one)]
        for root in found:
            self._alive.add(root)
            self._watch(root)
        self._known = {id(root) for root in self._alive}
        self.names = sorted(type(root).__name__ for root in self._alive)

    def _watch(self, root: nn.Module) -> None:
        compiled = root.__dict__.get("_compiled_call_impl")
        if compiled is not None:
            if not hasattr(compiled, "__wrapped__"):
                root._compiled_call_impl = self._around(compiled, root)
            return
        owner = type(root)
        if owner in self._classes or issubclass(owner, torch.jit.ScriptModule):
            return
        self._classes.add(owner)
        self._known_class(owner)

    def _around(self, call: Any, root: nn.Module) -> Any:
        """The compiled call of one module, with its ends noted."""
        timed = self._timed

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs) if torch.compiler.is_compiling() else timed(root, call, args, kwargs)

        return wrapper

    def _timed(self, module: nn.Module, call: Any, args: Any, kwargs: Any) -> Any:
        driver = self._driver
        if not driver.hooks.call("forward", driver.forward_begins, module, (args, kwargs)):
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            driver.hooks.call("forward", driver.forward_ended)

    def _known_class(self, owner: type) -> None:
        own: Any = owner.__dict__.get("__call__")
        known, kind = self, cast("Any", owner)

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            usual: Any = super(kind, module)
            call = usual.__call__ if own is None else functools.partial(own, module)
            if torch.compiler.is_compiling() or id(module) not in known._known:
                return call(*args, **kwargs)
            return known._timed(module, call, args, kwargs)

        owner.__call__ = __call__  # type: ignore[method-assign]


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
