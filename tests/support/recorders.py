"""Recorders of one rank that watch calls as on one of several."""

from __future__ import annotations

from aorta.instrument import StepRecorder
from aorta.instrument.dispatch import DISPATCH
from aorta.instrument.watching import Watching


def watch_alone(recorder: StepRecorder) -> Watching:
    """Watch calls of groups of one rank, which otherwise exchange nothing."""
    recorder._calls = watching = Watching(recorder._collectives, lambda: None, alone=True)
    recorder._steps.add(watching.watch)
    return watching


def forget_dispatch() -> None:
    """Take back what an earlier test of this process registered with torch's dispatcher."""
    if DISPATCH._library is not None:
        DISPATCH._library._destroy()
        DISPATCH._library = None
