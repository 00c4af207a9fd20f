"""Timing inside the training process: streams, collectives, step records.

`StepRecorder` is what a training program uses; see its docstring for a complete loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aorta.instrument.opened import Step
    from aorta.instrument.recorder import StepRecorder

__all__ = ["Step", "StepRecorder"]

_HOMES = {"Step": "aorta.instrument.opened", "StepRecorder": "aorta.instrument.recorder"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the process that writes records needs this package, and no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
