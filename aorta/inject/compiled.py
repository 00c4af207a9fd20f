"""Updates that run inside of a compiled function, where no hook is called.

While torch traces a function, it runs the hooks of the optimizer with it. It keeps what they assign and
leaves out the rest: each later call of the function assigns again. So a hook says which optimizer has updated
without a break in the graph and without another graph.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from aorta.inject.driver import Driver


class Updated:
    """The optimizer whose compiled update has run since the last look."""

    optimizer: Any = None


class CompiledUpdates:
    """Watches compiled functions.

    Args:
        driver: is told of updates.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.updated = Updated()
        self._begins_eagerly: Any = None
        self._ends_eagerly: Any = None
        self._hidden = False

    def hooks(self) -> tuple[Any, Any]:
        """Return the hooks of all optimizers, before and after an update."""
        driver, updated, traced = self._driver, self.updated, torch.compiler.is_dynamo_compiling
        off, switch_off = driver.hooks.off, driver.hooks.switch_off
        self._begins_eagerly, self._ends_eagerly = driver.update_begins, driver.update_ended

        def before(optimizer: Any, *_: Any) -> None:
            if not traced() and "optimizer" not in off:
                try:
                    self._begins_eagerly(optimizer)
                except Exception as error:
                    switch_off("optimizer", error)

        def after(optimizer: Any, *_: Any) -> None:
            if traced():
                updated.optimizer = optimizer
            elif "optimizer" not in off:
                try:
                    self._ends_eagerly(optimizer)
                except Exception as error:
                    switch_off("optimizer", error)

        return before, after

    def watch(self) -> None:
        """Look for an update after each call of a compiled function. Modules are left as they are."""
        usual, hooks = torch.compile, self._driver.hooks

        @functools.wraps(usual)
        def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            made: Any = usual(model, *args, **kwargs)
            owner = getattr(model, "__self__", model)
            if model is None or isinstance(owner, (nn.Module, type)):
                return made
            if not self._hidden:
                # Behind a break in a graph, torch would trace what the hooks call.
                self._hidden = True
                self._begins_eagerly = torch.compiler.disable(self._begins_eagerly)
                self._ends_eagerly = torch.compiler.disable(self._ends_eagerly)
            return hooks.around("compiled", made, self._begins, self._ended)

        torch.compile = compile_

    def take(self) -> Any:
        """Return the optimizer whose compiled update has run since the last call. None if none has."""
        optimizer, self.updated.optimizer = self.updated.optimizer, None
        return optimizer

    def _begins(self, /, *_: Any, **__: Any) -> Any:
        parts = self._driver.here()
        if parts is None:
            return () if self._driver.recorder is None else None
        return None if parts.part != "other" else (parts.moment(), parts.newest)

    def _ended(self, begun: Any, _: Any) -> None:
        driver = self._driver
        optimizer, parts = self.take(), driver.here()
        if optimizer is None:
            return
        if parts is not None and begun:
            # Forward and backward passes inside of the function have their own parts.
            start = begun[0] if parts.newest is begun[1] else parts.newest
            parts.updated(start)
        driver.hooks.seen.add("optimizer")
        driver.update_ended(optimizer)
