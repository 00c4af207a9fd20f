"""All-reduces of some process groups, seen where torch's dispatcher hands them to their backend.

Whoever calls one, DDP's reducer in C++ or a program in Python, comes by there, and while nobody watches torch
is as it was (older torch excepted, see `Dispatch`): no object of Python's stands in its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist


class Watcher(Protocol):
    """Of the all-reduces of a group."""

    def noted(self, tensors: list[torch.Tensor], begin: Callable[[], Any]) -> Any:
        """Gets the tensors of one and a function that begins it, and returns the work that the caller is to
        wait for: that of the function, or one in its place.
        """


_OPERATOR, _KEYS = "allreduce_", ("AutogradCPU", "AutogradCUDA")
_kernel = getattr(torch._C, "_dispatch_get_computed_kernel_for_dispatch_key", None)
"""What torch calls for an operator and a key; older torch does not say."""


class Dispatch:
    """Asks the watchers of process groups about each of their all-reduces.

    Torch frees what was registered when it is taken back, even while another thread of the program is on its
    way into it and waits for the interpreter. So each is kept for good, some hundred bytes; older torch has
    no way to keep it, and goes on asking us.
    """

    def __init__(self) -> None:
        self._watchers: WeakValueDictionary[dist.ProcessGroup, Watcher] = WeakValueDictionary()
        """Who lets go of a watcher without a word lets go of its group."""
        self._library: torch.library.Library | None = None
        self._kept: list[object] = []
        self._lock = threading.Lock()

    def watch(self, group: dist.ProcessGroup, watcher: Watcher | None) -> None:
        """Have `watcher` asked from now on; None: nobody. Between steps.

        A kernel that the program has registered there itself stays, and nothing is seen.
        """
        with self._lock:
            if watcher is None:
                self._watchers.pop(group, None)
            else:
                self._watchers[group] = watcher
            if self._watchers and self._library is None:
                self._library = torch.library.Library("c10d", "IMPL")
                for key in _KEYS:
                    self._register(self._library, key)
            elif not self._watchers and self._library is not None and _kernel is not None:
                self._library._destroy()
                self._library = None

    def _register(self, library: torch.library.Library, key: str) -> None:
        name = f"c10d::{_OPERATOR}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return
        library.impl(_OPERATOR, self._called, key)
        if _kernel is not None:
            self._kept.append(_kernel(name, getattr(torch._C.DispatchKey, key)))

    def _called(self, tensors: list[torch.Tensor], group: Any, *rest: Any) -> tuple[list[torch.Tensor], Any]:
        watcher = self._watchers.get(dist.ProcessGroup.unbox(group))
        if watcher is None:
            return _below(tensors, group, *rest)
        made: list[Any] = []

        def begin() -> Any:
            made.extend(_below(tensors, group, *rest))
            return dist.Work.unbox(made[1])

        work = watcher.noted(tensors, begin)
        return made[0], work.boxed()


def _below(*args: Any) -> tuple[list[torch.Tensor], Any]:
    """What would have been called without us; torch unlocks the interpreter in it."""
    with torch._C._AutoDispatchBelowAutograd():
        found: tuple[list[torch.Tensor], Any] = torch.ops.c10d.allreduce_.default(*args)
    return found


DISPATCH = Dispatch()
"""Torch has one dispatcher."""
