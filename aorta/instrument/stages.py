"""Passes of microbatches through stages: marked by the program, or followed in torch's schedules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal

from aorta.instrument.contexts import OpenStep
from aorta.instrument.steps import COMPUTE
from aorta.instrument.waits import uncompiled

Pass = Literal["forward", "backward", "weight"]

_MODULE, _CLASS = "torch.distributed.pipelining.stage", "_PipelineStageBase"
_METHODS: dict[str, Pass] = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "weight",
}


class Stages:
    """Notes passes of microbatches on the tape of the open step.

    Args:
        now: what the training thread is in.
    """

    def __init__(self, now: OpenStep) -> None:
        self._now = now
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    @contextmanager
    def marked(self, kind: Pass, microbatch: int, stage: int) -> Iterator[None]:
        """One pass of a microbatch through a stage."""
        now = self._now
        tape = now.parts
        start = now.mark() if tape is not None else None
        yield
        if tape is not None and start is not None:
            found = {"op": kind, "stage": stage, "microbatch": microbatch}
            tape.add(COMPUTE, kind, start, now.mark(), found)

    def watch(self, on: bool) -> None:
        """Follow the schedules of `torch.distributed.pipelining`, or no longer."""
        place = getattr(sys.modules.get(_MODULE), _CLASS, None)
        if on and not self._replaced and place is not None:
            for name, kind in _METHODS.items():
                original = getattr(place, name, None)
                if original is not None:
                    put = self._followed(original, kind)
                    setattr(place, name, put)
                    self._replaced.append((place, name, original, put))
        elif not on:
            while self._replaced:
                place, name, original, put = self._replaced.pop()
                if getattr(place, name) is put:
                    setattr(place, name, original)

    def _followed(self, original: Callable[..., Any], kind: Pass) -> Callable[..., Any]:
        @wraps(original)
        def run(stage: Any, microbatch: int, *args: Any, **kwargs: Any) -> Any:
            with self.marked(kind, microbatch, int(stage.stage_index)):
                return original(stage, microbatch, *args, **kwargs)

        return run


uncompiled(Stages)
