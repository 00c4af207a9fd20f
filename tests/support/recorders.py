"""Recorders of one rank that watch calls as on one of several."""

from __future__ import annotations

from aorta.instrument import StepRecorder
from aorta.instrument.watching import Watching


def watch_alone(recorder: StepRecorder) -> Watching:
    """Watch calls of groups of one rank, which otherwise exchange nothing."""
    recorder._calls = watching = Watching(recorder._collectives, lambda: None, alone=True)
    recorder._have_watched(watching.watch)
    return watching
