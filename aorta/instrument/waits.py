"""The places where a program waits for calls of `torch.distributed` while they are watched."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any, Protocol

import torch
import torch.distributed as dist


def _skipper() -> Callable[[CodeType], None] | None:
    """Returns what keeps a function out of compiled graphs. None if this torch has no such way."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        return lambda code: frames.set_code_exec_strategy(code, skipped)
    return getattr(frames, "skip_code", None)


_skip = _skipper()


def uncompiled(*owners: type | Callable[..., Any]) -> None:
    """Keep functions, the methods and properties of classes, and functions in them, out of compiled graphs.

    `torch.compiler.disable` does so as well, but loads the compiler, which most programs never use.
    """
    found: list[Any] = []
    for owner in owners:
        found += vars(owner).values() if isinstance(owner, type) else [owner]
    found = [one.fget if isinstance(one, property) else one for one in found]
    pending = [one.__code__ for one in found if hasattr(one, "__code__")]
    while pending and _skip is not None:
        code = pending.pop()
        _skip(code)
        pending += [one for one in code.co_consts if isinstance(one, CodeType)]


class WaitListener(Protocol):
    """Interface of objects that are told about waits."""

    def waited(self, work: Any, wait: Callable[[], Any]) -> Any:
        """Gets a work and a function that waits for it; returns what that returns."""

    def waited_for(self, tensor: Any, wait: Callable[[], Any]) -> Any:
        """Gets the result of a functional collective and a function that waits for it."""

    def held(self, run: Callable[[], Any]) -> Any:
        """Gets a function that makes calls and waits for them itself; returns what that returns."""

    def batched(self, begin: Callable[[], None]) -> None:
        """Gets a function after which calls are collected."""

    def launched(self, end: Callable[[], Any]) -> Any:
        """Gets a function that launches what was collected and returns the work of it."""


class WaitHooks:
    """Puts functions of ours in the place of torch's, and puts torch's back."""

    def __init__(self) -> None:
        self._waiter: WaitListener | None = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self.wait: Callable[..., Any] = dist.Work.wait
        """Torch's own function."""

    def watch(self, waiter: WaitListener | None) -> None:
        """Tell `waiter` from now on. None removes it."""
        self._waiter = waiter
        if waiter is not None and not self._replaced:
            self._replace(dist.Work, "wait", self._waited)
            self._replace(dist, "_broadcast_coalesced", self._held)
            self._replace(dist.Reducer, "_rebuild_buckets", self._held)  # type: ignore[attr-defined]
            self._replace(dist.ProcessGroup, "_start_coalescing", self._batched)
            self._replace(dist.ProcessGroup, "_end_coalescing", self._launched)
            for operator in (packet := torch.ops._c10d_functional.wait_tensor, packet.default):
                self._replace(operator, "_op", self._waited_for)
        elif waiter is None:
            while self._replaced:
                place, name, original, put = self._replaced.pop()
                if getattr(place, name) is put:
                    setattr(place, name, original)

    def _replace(self, place: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        original = getattr(place, name, None)
        if original is None:  # this torch has none
            return
        put = make(original)
        put._torchdynamo_disable = True  # type: ignore[attr-defined]
        put._torchdynamo_disable_msg = "a call that is timed"  # type: ignore[attr-defined]
        setattr(place, name, put)
        self._replaced.append((place, name, original, put))

    def _waited(self, original: Any) -> Callable[..., Any]:
        @wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            waiter = self._waiter
            if waiter is None:
                return original(work, *args, **kwargs)
            return waiter.waited(work, lambda: original(work, *args, **kwargs))

        return wait

    def _waited_for(self, original: Any) -> Callable[..., Any]:
        @wraps(original)
        def wait(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            waiter = self._waiter
            if waiter is None:
                return original(tensor, *args, **kwargs)
            return waiter.waited_for(tensor, lambda: original(tensor, *args, **kwargs))

        return wait

    def _held(self, original: Any) -> Callable[..., Any]:
        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            waiter = self._waiter
            if waiter is None:
                return original(*args, **kwargs)
            return waiter.held(lambda: original(*args, **kwargs))

        return run

    def _batched(self, original: Any) -> Callable[..., Any]:
        @wraps(original)
        def begin(*args: Any, **kwargs: Any) -> Any:
            waiter = self._waiter
            if waiter is None:
                return original(*args, **kwargs)
            return waiter.batched(lambda: original(*args, **kwargs))

        return begin

    def _launched(self, original: Any) -> Callable[..., Any]:
        @wraps(original)
        def end(*args: Any, **kwargs: Any) -> Any:
            waiter = self._waiter
            if waiter is None:
                return original(*args, **kwargs)
            return waiter.launched(lambda: original(*args, **kwargs))

        return end


uncompiled(WaitHooks)
WAITS = WaitHooks()
"""Torch has one of each place."""
