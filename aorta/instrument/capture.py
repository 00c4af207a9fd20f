"""Which steps count, and which ones the external profiler sees."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from aorta.artefacts.records import Phase
from aorta.config.schema import Capture


def phase_of(global_step: int, capture: Capture, external: bool) -> Phase:
    """`warmup` for the first `capture.warmup_steps`, `profiler` where an external capture starts, else
    `steady`.
    """
    if global_step < capture.warmup_steps:
        return "warmup"
    if external and global_step == capture.start_step:
        return "profiler"
    return "steady"


class ExternalCapture:
    """Opens and closes the capture range of nsys (`--capture-range=cudaProfilerApi`) around the configured
    steps.

    Active when the node agent runs this rank under nsys (`AORTA_PROFILER=nsys`) on a GPU. Both calls fall
    between steps.
    """

    def __init__(
        self, capture: Capture, device: torch.device, environment: Mapping[str, str] | None = None
    ) -> None:
        env = os.environ if environment is None else environment
        self.active = env.get("AORTA_PROFILER") == "nsys" and device.type == "cuda"
        self._capture = capture
        self._device = device
        self._open = False

    def before_step(self, global_step: int) -> None:
        """Start when the first captured step comes."""
        if self.active and global_step == self._capture.start_step:
            torch.cuda.profiler.start()
            self._open = True

    def after_step(self, global_step: int) -> None:
        """Stop after the last one, when its kernels have run."""
        if self._open and global_step + 1 >= self._capture.start_step + self._capture.steps:
            self.close()

    def close(self) -> None:
        """Stop if the run ends inside the range."""
        if self._open:
            torch.cuda.synchronize(self._device)
            torch.cuda.profiler.stop()
            self._open = False
