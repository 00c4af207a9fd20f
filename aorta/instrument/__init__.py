"""Timing inside the training process: streams, collectives, step records.

`StepRecorder` is what a training program uses; see its docstring for a complete loop.
"""

from aorta.instrument.assemble import Step
from aorta.instrument.recorder import StepRecorder

__all__ = ["Step", "StepRecorder"]
