"""The modules that a program calls itself, and the hook on their calls.

A hook in a module would be copied, pickled, scripted and compiled with it. So the class of each root module
gets a `__call__` that asks whether the module is one of the roots. Nothing of ours is in the module itself.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from torch import nn

from aorta.inject.inner import InnerModules, restore

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
        self.frozen: set[int] = set()
        """Root modules without parameters to train: teachers, encoders, averages of weights."""
        self._looks = MOST_LOOKS
        self.alive: WeakSet[nn.Module] = WeakSet()
        self.inner = InnerModules()
        self._compiled: WeakSet[nn.Module] = WeakSet()
        self.classes: dict[type, tuple[Any, Any]] = {}
        """Classes whose calls are watched: the `__call__` that they had themselves (None: none), and ours."""
        self.names: list[str] = []
        """Classes of the root modules."""

    def look_again(self) -> None:
        """Look again for roots after the first update of a new optimizer: its model may be new, too."""
        with contextlib.suppress(Exception):  # without it, forward passes of new models are unseen
            if self._looks:
                self._looks -= 1
                self.find()

    def find(self) -> None:
        """Look for root modules among all objects."""
        below: set[int] = set()
        modules = []
        for one in gc.get_objects():
            if issubclass(type(one), nn.Module):
                with contextlib.suppress(Exception):  # one that was never initialised has no children
                    below.update(id(child) for child in one.children())
                    modules.append(one)
        found = [one for one in modules if id(one) not in below and _has_parameters(one)]
        self.frozen = {id(root) for root in found if not _trains(root)}
        for root in found:
            self.alive.add(root)
            self._watch(root)
        self._known.clear()
        self._known.update(id(root) for root in self.alive)
        self._known.update(self.inner.known)
        self._others.clear()
        self._others.update(below)
        self.names = sorted(type(root).__name__ for root in self.alive)

    def learn(self, step: int, *, forward: bool) -> None:
        """Learn in the first steps which modules a program calls that calls only methods of its models.

        Args:
            step: the number of the step that ends.
            forward: a forward pass was seen.
        """
        with contextlib.suppress(Exception):  # without it, the forward pass stays unseen
            if self.inner.begins(step, forward=forward):
                inside = self._inside()
                self.inner.known = set(inside)
                self._known.update(inside)
                for module in inside.values():
                    self._watch(module)
            elif self.inner.ends(step):
                self._keep(self.inner.known)

    def _inside(self) -> dict[int, nn.Module]:
        """Return the modules inside of the roots, by identity."""
        roots = set(self.alive)
        return {id(one): one for root in roots for one in root.modules() if one not in roots}

    def _keep(self, known: set[int]) -> None:
        """Watch no other modules inside of the roots than those in `known`."""
        inside = self._inside()
        kept = {type(root) for root in self.alive} | {type(inside[one]) for one in known & inside.keys()}
        for owner in self.classes.keys() - kept:
            own, put = self.classes[owner]
            if restore(owner, own, put):
                del self.classes[owner]
        self._known.difference_update(inside.keys() - known)

    def _watch(self, root: nn.Module) -> None:
        compiled = root.__dict__.get("_compiled_call_impl")
        if compiled is not None:
            if root not in self._compiled:
                self._compiled.add(root)
                root._compiled_call_impl = self._around(compiled, root)
            return
        owner = type(root)
        if owner in self.classes or issubclass(owner, torch.jit.ScriptModule):
            return
        self._known_class(owner)

    def _around(self, call: Any, root: nn.Module) -> Any:
        """The compiled call of one module, with its ends noted."""
        compiling = torch.compiler.is_compiling

        def bound(_: Any, /, *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        watched = self._watched(bound)

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs) if compiling() else watched(root, args, kwargs)

        return wrapper

    def _watched(self, call: Any) -> Any:
        """Return a function that makes a call of a module with its ends noted, and never raises by itself."""
        driver, off, switch_off = self._driver, self._driver.hooks.off, self._driver.hooks.switch_off
        inner = self.inner

        def watched(module: Any, args: Any, kwargs: Any) -> Any:
            begun = None
            if "forward" not in off:
                try:
                    begun = driver.forward_begins(module, (args, kwargs))
                    if begun and inner.called is not None:  # the first steps learn
                        inner.called.add(id(module))
                except Exception as error:
                    switch_off("forward", error)
            try:
                return call(module, *args, **kwargs)
            finally:
                if begun is not None:
                    try:
                        driver.forward_ended()
                    except Exception as error:
                        switch_off("forward", error)

        return watched

    def _known_class(self, owner: type) -> None:
        own = owner.__dict__.get("__call__")
        known, made_later, kind = self._known, self._made_later, cast("Any", owner)
        compiling = torch.compiler.is_compiling

        def usual(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            # Looked up in each call: a tracer of torch replaces the call of all modules for a while.
            above: Any = super(kind, module)
            return above.__call__(*args, **kwargs)

        call = usual if own is None else _unbound(own, owner)
        watched = self._watched(call)

        # The program's own arguments may have any name.
        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if compiling() or (id(module) not in known and not made_later(module)):
                return call(module, *args, **kwargs)
            return watched(module, args, kwargs)

        owner.__call__ = __call__  # type: ignore[method-assign]
        self.classes[owner] = own, __call__

    def _made_later(self, module: nn.Module) -> bool:
        """Return whether a module of a root's class is a root that was made after the roots were found."""
        parts = self._driver.here()
        if parts is None or parts.part != "other" or id(module) in self._others:
            return False
        counts = _has_parameters(module)
        (self._known if counts else self._others).add(id(module))
        if counts and not _trains(module):
            self.frozen.add(id(module))
        return counts


def _unbound(own: Any, owner: type) -> Any:
    """Return a function that takes the module first, for what a class has as `__call__`: any object."""
    if isinstance(own, FunctionType):
        return own

    def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = own.__get__(module, owner) if hasattr(own, "__get__") else own
        return bound(*args, **kwargs)

    return call


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
