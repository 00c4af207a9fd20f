"""CUDA graphs: what is captured runs later. A replay of a graph that holds an update ends a step."""

from __future__ import annotations

import functools
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from aorta.inject.driver import Driver


_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
"""The question without the functions around it; None in a torch without CUDA."""


class Captures:
    """Captures of torch in this process."""

    begun = False
    """One has begun. Before, asking CUDA in each hook would be for nothing."""


CAPTURES = Captures()


def captured(*, surely: bool = False) -> bool:
    """Return whether the calls of this moment are captured into a graph.

    Args:
        surely: ask CUDA even if torch has begun no capture: another library may have.
    """
    if _capturing is None or not (surely or CAPTURES.begun):
        return False
    return torch.cuda.is_initialized() and bool(_capturing())


class Graphs:
    """Notes which graphs hold an update, and when they are replayed.

    Args:
        driver: is told of replays.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._optimizer: Any = None
        """The optimizer whose update was captured since the last capture ended."""
        self._with_update: dict[int, Any] = {}
        """The optimizer whose update a graph holds, by identity of the graph."""

    def update_captured(self, optimizer: Any) -> None:
        """Note an update that will run when the graph is replayed."""
        self._optimizer = optimizer

    def watch(self) -> None:
        """Install the hooks."""
        graph: Any = torch.cuda.CUDAGraph
        hooks = self._driver.hooks
        ends, capture_ended = graph.capture_end, hooks.guarded("graph", self._ended)

        @functools.wraps(ends)
        def capture_end(made: Any) -> None:
            ends(made)
            capture_ended(made)

        begins = graph.capture_begin

        @functools.wraps(begins)
        def capture_begin(*args: Any, **kwargs: Any) -> None:
            CAPTURES.begun = True
            begins(*args, **kwargs)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        graph.replay = hooks.around("graph", graph.replay, self._begins, self._replayed)

    def _ended(self, made: Any) -> None:
        self._with_update.pop(id(made), None)  # of a graph that is gone
        if self._optimizer is not None:
            self._with_update[id(made)], self._optimizer = self._optimizer, None

    def _begins(self, made: Any) -> Any:
        optimizer = self._with_update.get(id(made))
        driver = self._driver
        if optimizer is None or captured():
            return None
        if driver.thread is None:
            driver.thread = get_ident()
        parts = driver.here()
        if parts is not None:
            parts.begins("forward")
            driver.hooks.seen.add("graph")
        return optimizer

    def _replayed(self, optimizer: Any, _: Any) -> None:
        """End the step of a graph that holds its update: all of it counts as compute."""
        driver = self._driver
        driver.worked()
        driver.forward_ended()
        driver.update_ended(optimizer)
