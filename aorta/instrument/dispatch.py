"""All-reduces of some process groups, seen where torch's dispatcher hands them to their backend.

Whoever calls one, DDP's reducer in C++ or a program in Python, comes by there, and while nobody watches torch
is as it was: no object of Python's stands in its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Watcher = Callable[[list[torch.Tensor], Callable[[], Any]], Any]
"""Gets the tensors of an all-reduce and a function that begins it, and returns the work that the caller is to
wait for: that of the function, or one in its place.
"""
_KEYS = ("AutogradCPU", "AutogradCUDA")


class Dispatch:
    """Asks the watchers of process groups about each of their all-reduces."""

    def __init__(self) -> None:
        self._watchers: dict[dist.ProcessGroup, Watcher] = {}
        self._library: torch.library.Library | None = None
        self._lock = threading.Lock()

    def watch(self, group: dist.ProcessGroup, watcher: Watcher | None) -> None:
        """Have `watcher` asked from now on; None: nobody. Between steps."""
        with self._lock:
            if watcher is None:
                self._watchers.pop(group, None)
            else:
                self._watchers[group] = watcher
            if self._watchers and self._library is None:
                self._library = torch.library.Library("c10d", "IMPL")
                for key in _KEYS:
                    self._library.impl("allreduce_", self._called, key)
            elif not self._watchers and self._library is not None:
                self._library._destroy()
                self._library = None

    def _called(self, tensors: list[torch.Tensor], group: Any, *rest: Any) -> tuple[list[torch.Tensor], Any]:
        watcher = self._watchers.get(dist.ProcessGroup.unbox(group))
        if watcher is None:
            return _below(tensors, group, *rest)
        made: list[Any] = []

        def begin() -> Any:
            made.extend(_below(tensors, group, *rest))
            return dist.Work.unbox(made[1])

        work = watcher(tensors, begin)
        return made[0], work.boxed()


def _below(*args: Any) -> tuple[list[torch.Tensor], Any]:
    """What would have been called without us; torch unlocks the interpreter in it."""
    with torch._C._AutoDispatchBelowAutograd():
        found: tuple[list[torch.Tensor], Any] = torch.ops.c10d.allreduce_.default(*args)
    return found


DISPATCH = Dispatch()
"""Torch has one dispatcher."""
