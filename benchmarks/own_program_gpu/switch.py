"""Takes the hooks out of a process and puts them back, and times blocks of steps with and without them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, dataloader

from aorta.inject import stacks
from aorta.inject.driver import Driver
from aorta.inject.loaders import LoaderHooks

LEARNED, WARMUP, BLOCK, SETTLED = 2, 10, 30, 6
"""Updates before the first record, steps of warm-up, steps per block, and its first ones, which are not
timed: Python and torch forget what they know of a class whenever a hook is put there or taken out.
"""


class Block(NamedTuple):
    """Steps from one synchronisation to the next."""

    kind: str
    """`plain`, `whole` or `detailed`."""
    step_ms: float
    host_us: float
    """CPU time of the training thread per step."""


class Switch:
    """The hooks of this process.

    Args:
        driver: what `aorta.inject.start.install` returned.
    """

    PLACES: tuple[tuple[Any, str], ...] = (
        (torch.autograd, "backward"), (torch.autograd, "grad"),
        (torch, "save"), (nn.utils, "clip_grad_norm_"),
        (dataloader._BaseDataLoaderIter, "__next__"), (DataLoader, "__iter__"),
        (torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "scale"),
        (torch.cuda.CUDAGraph, "capture_end"), (torch.cuda.CUDAGraph, "replay"),
        (torch.Tensor, "to"), (torch.Tensor, "cuda"),
    )  # fmt: skip
    AROUND = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    PLAIN = tuple(getattr(owner, name) for owner, name in PLACES)
    """Torch's own functions: this module is imported before the hooks are installed."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._hooked: list[Any] = []
        self._around: list[dict[int, Any]] = []
        self._calls: list[tuple[type, Any]] = []

    def out(self) -> None:
        """Leave torch as it was, but for the registration of collectives."""
        self._hooked = [getattr(owner, name) for owner, name in self.PLACES]
        for (owner, name), plain in zip(self.PLACES, self.PLAIN, strict=True):
            setattr(owner, name, plain)
        self._around = [dict(hooks) for hooks in self.AROUND]
        for hooks in self.AROUND:
            hooks.clear()
        self._calls = [(one, one.__dict__["__call__"]) for one in self.driver.roots.classes]
        for one, (own, _) in self.driver.roots.classes.items():
            if own is None:
                del one.__call__
            else:
                one.__call__ = own  # type: ignore[method-assign]
        self.driver.rank.sampler.stop()

    def back(self) -> None:
        """Put the hooks back."""
        for (owner, name), hooked in zip(self.PLACES, self._hooked, strict=True):
            setattr(owner, name, hooked)
        for hooks, kept in zip(self.AROUND, self._around, strict=True):
            hooks.update(kept)
        for one, call in self._calls:
            one.__call__ = call  # type: ignore[method-assign]
        before = self.driver.rank.sampler
        self.driver.rank.sampler = stacks.Sampler(before._stacks, before._report, before._look)


class Blocks:
    """Alternates blocks of steps.

    Args:
        switch: of the hooks; None: nothing is switched.
        seconds: after which there are no more blocks.
        inside: told of each step.
    """

    def __init__(self, switch: Switch | None, seconds: float, inside: Inside | None = None) -> None:
        self.found: list[Block] = []
        self.done = False
        """There was time for all blocks."""
        self._switch, self._seconds, self._inside = switch, seconds, inside
        self._steps, self._kind = 0, ""
        self._end = self._since = 0.0
        self._cpu = 0

    def step(self) -> None:
        """Note the end of a step."""
        self._steps += 1
        if self._inside is not None:
            self._inside.step()
        at = self._steps - LEARNED - WARMUP
        if self._switch is None or at < 0:
            return
        if at % BLOCK == SETTLED:
            _synchronize()
            self._since, self._cpu = time.perf_counter(), time.thread_time_ns()
        if at % BLOCK:
            return
        _synchronize()
        now = time.perf_counter()
        if at:
            timed = BLOCK - SETTLED
            cpu = (time.thread_time_ns() - self._cpu) / 1000 / timed
            self.found.append(Block(self._kind, 1000 * (now - self._since) / timed, cpu))
        self._end = self._end or now + self._seconds
        if (at // BLOCK) % 2:
            self._switch.back()
            self._kind = "detailed" if self._switch.driver.recorder._steps.kind[1] else "whole"
        else:
            self.done = _agreed(now > self._end)
            self._switch.out()
            self._kind = "plain"


class Inside:
    """Times what hooks do, by the host's clock, in whole steps. Make it before the hooks are installed."""

    NAMES = (
        "update_begins", "update_ended", "forward_begins", "forward_ended", "backward_begins",
        "backward_ended", "clipped", "scaled",
    )  # fmt: skip
    LOADERS = ("iteration_begins", "iteration_begun", "wait_begins", "wait_ended")

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        for owner, names in ((Driver, self.NAMES), (LoaderHooks, self.LOADERS)):
            for name in names:
                setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, function: Any) -> Any:
        clock = time.perf_counter_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._now[name] = self._now.get(name, 0.0) + (clock() - began) / 1000

        return timed

    def step(self) -> None:
        """Note the end of a step."""
        self.steps.append(dict(self._now))
        self._now.clear()


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _agreed(over: bool) -> bool:
    """Rank 0's answer, so that all ranks stop together."""
    said = torch.tensor([float(over)], device="cuda" if torch.cuda.is_available() else "cpu")
    if torch.distributed.is_initialized():
        torch.distributed.broadcast(said, 0)
    return bool(said.item())
