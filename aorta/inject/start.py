"""Installs the hooks, once per process, right after torch was imported."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.nn import utils
from torch.optim import optimizer as optimizers
from torch.utils.data import DistributedSampler, dataloader

from aorta.inject.callbacks import ACTIVE
from aorta.inject.driver import Driver
from aorta.inject.hooks import Hooks
from aorta.inject.status import mark_installed

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torchrun")


def install() -> Driver | None:
    """Install the hooks in this process. Returns what they drive; None in a launcher, which gets none."""
    if any(os.path.basename(word) in _LAUNCHERS for word in sys.orig_argv[:5]):  # noqa: PTH119
        return None
    driver = Driver()
    ACTIVE.append(driver)
    mark_installed()
    hooks = driver.hooks
    before, after = driver.compiled.hooks()
    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    torch.autograd.backward = hooks.around(
        "backward", torch.autograd.backward, driver.backward_begins, driver.backward_ended
    )
    torch.autograd.grad = hooks.around(
        "backward", torch.autograd.grad, driver.gradients_begin, driver.backward_ended
    )
    torch.save = hooks.after("checkpoint", torch.save, driver.saves)
    utils.clip_grad_norm_ = hooks.after("clipping", utils.clip_grad_norm_, driver.clipped)
    _watch_loaders(driver, hooks)
    _watch_scalers(driver, hooks)
    driver.graphs.watch()
    driver.compiled.watch()
    os.register_at_fork(after_in_child=driver.forked)
    finish = hooks.guarded("end", driver.finish)
    atexit.register(finish)
    _watch_exit(hooks.guarded("end", driver.exits))
    # A child that multiprocessing forks ends without atexit, and forgets the finalizers of its parent.
    multiprocessing.util.register_after_fork(
        driver, lambda _: multiprocessing.util.Finalize(None, finish, exitpriority=0)
    )
    return driver


def _watch_exit(noted: Callable[[int], Any]) -> None:
    """Have `noted` called before `os._exit`, with which some programs end: nothing else runs then."""
    usual = os._exit

    @functools.wraps(usual)
    def _exit(status: int) -> NoReturn:
        try:
            noted(status)
        finally:  # a second Ctrl-C must not keep the process
            usual(status)

    os._exit = _exit


def _watch_scalers(driver: Driver, hooks: Hooks) -> None:
    scaler = torch.amp.GradScaler
    scaler.step = hooks.around(  # type: ignore[method-assign]
        "scaler", scaler.step, driver.scaler_begins, driver.scaler_ended
    )
    usual, scaled = scaler.scale, hooks.guarded("loss", driver.scaled)

    @functools.wraps(usual)
    def scale(self: Any, outputs: Any) -> Any:
        result = usual(self, outputs)
        scaled(outputs, result)
        return result

    scaler.scale = scale  # type: ignore[method-assign]


def _watch_loaders(driver: Driver, hooks: Hooks) -> None:
    iterator, loader, sampler = dataloader._BaseDataLoaderIter, dataloader.DataLoader, DistributedSampler
    iterator.__next__ = hooks.around(  # type: ignore[method-assign]
        "loader", iterator.__next__, driver.loaders.wait_begins, driver.loaders.wait_ended
    )
    loader.__iter__ = hooks.around(  # type: ignore[method-assign]
        "loader", loader.__iter__, driver.loaders.iteration_begins, driver.loaders.iteration_begun
    )
    sets, says = sampler.set_epoch, hooks.guarded("epoch", driver.epochs.says)

    @functools.wraps(sets)
    def set_epoch(self: Any, epoch: int) -> None:
        sets(self, epoch)
        says(epoch)

    sampler.set_epoch = set_epoch  # type: ignore[method-assign]
