"""The modules that a program calls itself, and the hook on their calls.

A hook in a module would be copied, pickled, scripted and compiled with it. So the class of each root module
gets a `__call__` that asks whether the module is one of the roots. Nothing of ours is in the module itself.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from torch import nn

if TYPE_CHECKING:
    from aorta.inject.driver import Driver


MOST_LOOKS = 12
"""Looks at all objects for root modules, each of which takes about 0.05 s."""


class RootModules:
    """Finds the root modules and watches their calls.

    Args:
        driver: is told of the calls.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: set[int] = set()
        self._others: set[int] = set()
        """Modules that are no roots."""
        self._newest: Callable[[], Any] = _nothing
        """The optimizer that has updated last."""
        self._optimizers: WeakSet[Any] = WeakSet()
        """Optimizers that have updated."""
        self._looks = MOST_LOOKS
        self._alive: WeakSet[nn.Module] = WeakSet()
        self._compiled: WeakSet[nn.Module] = WeakSet()
        self._classes: set[type] = set()
        self.names: list[str] = []
        """Classes of the root modules."""

    def updated(self, optimizer: Any, *, recording: bool) -> None:
        """Look again for roots after the first update of an optimizer that is new: its model may be new too.

        Args:
            optimizer: that has updated.
            recording: the roots were looked for once.
        """
        if self._newest() is optimizer:  # asked after every update: in most programs there is one optimizer
            return
        with contextlib.suppress(Exception):  # without it, forward passes of new models are unseen
            self._newest = weakref.ref(optimizer)
            if optimizer in self._optimizers:
                return
            self._optimizers.add(optimizer)
            if recording and self._looks:
                self._looks -= 1
                self.find()

    def find(self) -> None:
        """Look for root modules among all objects."""
        modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
        below = {id(child) for one in modules for child in one.children()}
        found = [one for one in modules if id(one) not in below and _trains(one)]
        for root in found:
            self._alive.add(root)
            self._watch(root)
        self._known.clear()
        self._known.update(id(root) for root in self._alive)
        self._others.clear()
        self._others.update(below)
        self.names = sorted(type(root).__name__ for root in self._alive)

    def _watch(self, root: nn.Module) -> None:
        compiled = root.__dict__.get("_compiled_call_impl")
        if compiled is not None:
            if root not in self._compiled:
                self._compiled.add(root)
                root._compiled_call_impl = self._around(compiled, root)
            return
        owner = type(root)
        if owner in self._classes or issubclass(owner, torch.jit.ScriptModule):
            return
        self._classes.add(owner)
        self._known_class(owner)

    def _around(self, call: Any, root: nn.Module) -> Any:
        """The compiled call of one module, with its ends noted."""
        compiling, begins, ended = self._hooks

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if compiling() or begins(root, (args, kwargs)) is None:
                return call(*args, **kwargs)
            try:
                return call(*args, **kwargs)
            finally:
                ended()

        return wrapper

    @property
    def _hooks(self) -> tuple[Any, Any, Any]:
        hooks, driver = self._driver.hooks, self._driver
        begins = hooks.guarded("forward", driver.forward_begins)
        return torch.compiler.is_compiling, begins, hooks.guarded("forward", driver.forward_ended)

    def _known_class(self, owner: type) -> None:
        own: Any = owner.__dict__.get("__call__")
        known, made_later, kind = self._known, self._made_later, cast("Any", owner)
        compiling, begins, ended = self._hooks

        def usual(module: Any, *args: Any, **kwargs: Any) -> Any:
            # Looked up in each call: a tracer of torch replaces the call of all modules for a while.
            above: Any = super(kind, module)
            return above.__call__(*args, **kwargs)

        call = usual if own is None else own

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if compiling() or (id(module) not in known and not made_later(module)):
                return call(module, *args, **kwargs)
            if begins(module, (args, kwargs)) is None:
                return call(module, *args, **kwargs)
            try:
                return call(module, *args, **kwargs)
            finally:
                ended()

        owner.__call__ = __call__  # type: ignore[method-assign]

    def _made_later(self, module: nn.Module) -> bool:
        """Return whether a module of a root's class is a root that was made after the roots were found."""
        parts = self._driver.here()
        if parts is None or parts.part != "other" or id(module) in self._others:
            return False
        trains = _trains(module)
        (self._known if trains else self._others).add(id(module))
        return trains


def _nothing() -> None:
    """Return nothing, as a reference to an object that is gone does."""


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
