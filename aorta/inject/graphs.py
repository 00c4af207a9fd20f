"""CUDA graphs: what is captured runs later. A replay of a graph that holds an update ends a step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from aorta.inject.driver import Driver


def captured() -> bool:
    """Return whether the calls of this moment are captured into a graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


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
        ends, replays = graph.capture_end, graph.replay

        @functools.wraps(ends)
        def capture_end(made: Any) -> None:
            ends(made)
            hooks.call("graph", self._ended, made)

        @functools.wraps(replays)
        def replay(made: Any) -> None:
            wanted = hooks.call("graph", self._begins, made)
            replays(made)
            if wanted:
                hooks.call("graph", self._replayed, made)

        graph.capture_end, graph.replay = capture_end, replay

    def _ended(self, made: Any) -> None:
        self._with_update.pop(id(made), None)  # of a graph that is gone
        if self._optimizer is not None:
            self._with_update[id(made)], self._optimizer = self._optimizer, None

    def _begins(self, made: Any) -> bool:
        if id(made) not in self._with_update or captured():
            return False
        self._driver.hooks.seen.add("graph")
        self._driver.replay_begins()
        return True

    def _replayed(self, made: Any) -> None:
        self._driver.replay_ended(self._with_update[id(made)])
