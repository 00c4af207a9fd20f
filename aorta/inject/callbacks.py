"""Callbacks for the Trainer of transformers and for Lightning: they tell the hooks epochs and names.

    from aorta.inject.callbacks import hf_callback, lightning_callback

    Trainer(..., callbacks=[hf_callback()])
    lightning.Trainer(..., callbacks=[lightning_callback()])

The hooks make this module visible in a job. Outside of one, aorta must be installed; the callbacks do nothing
there. Steps are timed without them as well.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aorta.inject.driver import Driver

ACTIVE: list[Driver] = []
"""The hooks of this process; empty where there are none."""


def says_epoch(epoch: Any) -> None:
    """Tell the hooks the epoch, 0-based; a fraction of an epoch counts as the epoch that it is in."""
    for driver in ACTIVE:
        driver.epochs.says(None if epoch is None else int(epoch))


def validates() -> None:
    """Tell the hooks that the open step holds a validation."""
    for driver in ACTIVE:
        driver.validates()


def saves() -> None:
    """Tell the hooks that the open step holds a checkpoint."""
    for driver in ACTIVE:
        driver.saves()


def hf_callback() -> Any:
    """Return a callback for `transformers.Trainer`."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class HfCallback(base):
        def on_epoch_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            says_epoch(state.epoch)

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            validates()

        def on_save(self, *_: Any, **__: Any) -> None:
            saves()

    return HfCallback()


def lightning_callback() -> Any:
    """Return a callback for Lightning's Trainer, of whichever of its two packages the program uses."""
    package = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = importlib.import_module(package).Callback

    class LightningCallback(base):
        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            says_epoch(trainer.current_epoch)

        def on_validation_start(self, trainer: Any, *_: Any) -> None:
            if not trainer.sanity_checking:
                validates()

        def on_save_checkpoint(self, *_: Any) -> None:
            saves()

    return LightningCallback()
