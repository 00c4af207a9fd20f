"""Chooses the steps that count, and the ones that the external profiler sees."""

from __future__ import annotations

import ctypes
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from aorta.artefacts import names
from aorta.artefacts.step_names import Phase
from aorta.instrument.nvtx import host_ranges_seen

log = logging.getLogger(__name__)


class CaptureFields(Protocol):
    """The fields of the configuration's `capture` block that the recorder uses."""

    @property
    def warmup_steps(self) -> int:
        """First steps, which are left out of every average."""

    @property
    def start_step(self) -> int:
        """First step in the external profiler's range."""

    @property
    def steps(self) -> int:
        """Length of that range."""

    @property
    def kernel_interval(self) -> int:
        """Steps from one that is recorded kernel by kernel to the next; 0: none is."""

    @property
    def detail_interval(self) -> int | None:
        """Blocks of steps from one that is timed part by part to the next."""


@dataclass(frozen=True, slots=True)
class CaptureSteps:
    """A `CaptureFields`, with the defaults of the configuration."""

    warmup_steps: int = 10
    start_step: int = 20
    steps: int = 10
    kernel_interval: int = 0
    detail_interval: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> CaptureSteps:
        """Return what the node agent says, or the defaults outside a job."""
        env = os.environ if environment is None else environment
        said = json.loads(env.get(names.CAPTURE) or "{}")
        return cls(**{name: said[name] for name in cls.__slots__ if name in said})


DETAIL_STEPS = 30
"""Steps in a row that are timed part by part: what ranks did since they were last together needs neighbours.
"""
GPU_INTERVAL = 40
"""On a GPU, one block in this many is timed part by part. Recording a hundred events makes a host-bound step
5 to 15 % longer. All steps together, including those timed as a whole, may become at most 1 % longer.
"""


class StepSchedule:
    """The kind of each step.

    Args:
        capture: as configured.
        device: where the model is.
        external: whether a profiler outside of the process records the configured steps.
        sampled: whether a step is recorded kernel by kernel, or starts such a recording.
    """

    def __init__(
        self,
        capture: CaptureFields,
        device: torch.device,
        external: bool,
        sampled: Callable[[int], bool] | None,
    ) -> None:
        usual = GPU_INTERVAL if device.type == "cuda" else 1
        self._warmup = capture.warmup_steps
        self._interval = capture.detail_interval if capture.detail_interval is not None else usual
        self._slow = (capture.start_step, capture.start_step + capture.steps) if external else ()
        self._sampled = sampled

    def of(self, global_step: int) -> tuple[Phase, bool, int]:
        """The phase: `warmup` for the first steps, otherwise `steady`. It is `profiler` where an external
        capture starts and in the step after it, while nsys makes its report, and where kernels are sampled.

        Whether the step is timed part by part. Warm-up steps are also detailed, because they create
        everything that a first mark needs, and so are steps of the profiler. Afterwards, the first of each
        `capture.detail_interval` blocks of `DETAIL_STEPS` is detailed.

        And the next step for which this has to be asked: all before are of the same kind.
        """
        counted = global_step - self._warmup
        if counted < 0:
            return "warmup", True, self._warmup
        profiled = bool(self._slow) or self._sampled is not None
        if global_step in self._slow or (self._sampled is not None and self._sampled(global_step)):
            return "profiler", True, global_step + 1
        block = counted // DETAIL_STEPS
        end = global_step + 1 if profiled else self._warmup + (block + 1) * DETAIL_STEPS
        return "steady", block % self._interval == 0, end


class ExternalCapture:
    """Tells the profiler around this rank to record the configured steps.

    nsys listens on a GPU to CUDA's calls for profilers, without one to the NVTX range `names.CAPTURE_RANGE`;
    rocprofv3 listens to ROCTx. Active when the node agent runs this rank under nsys (`AORTA_PROFILER=nsys`),
    or under rocprofv3 with `AORTA_ROCTX_REGIONS=1`. Both ends fall between steps.
    """

    def __init__(
        self, capture: CaptureFields, device: torch.device, environment: Mapping[str, str] | None = None
    ) -> None:
        env = os.environ if environment is None else environment
        self._cuda = device.type == "cuda"
        self._regions = self._cuda and env.get(names.REGIONS) == "1"
        nsys = env.get(names.PROFILER) == "nsys" if self._cuda else host_ranges_seen(env)
        self.active = nsys or self._regions
        self._range: object = None
        self._capture = capture
        self._device = device
        self._open = False

    def before_step(self, global_step: int) -> None:
        """Start when the first captured step comes."""
        if self.active and global_step == self._capture.start_step:
            self._start()
            self._open = True

    def after_step(self, global_step: int) -> None:
        """Stop after the last one, when its kernels have run."""
        if self._open and global_step + 1 >= self._capture.start_step + self._capture.steps:
            self.close()

    def close(self) -> None:
        """Stop if the run ends inside the range."""
        if self._open:
            self._stop()
            self._open = False

    def _start(self) -> None:
        if self._regions:
            torch.cuda.synchronize(self._device)
            roctx("roctxProfilerResume")
            return
        if self._cuda:
            torch.cuda.profiler.start()
            return
        import nvtx

        self._range = nvtx.start_range(names.CAPTURE_RANGE)

    def _stop(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)
            if self._regions:
                roctx("roctxProfilerPause")
            else:
                torch.cuda.profiler.stop()
            return
        import nvtx

        nvtx.end_range(self._range)


_ROCTX = (None, "librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so")
"""Libraries with ROCTx: those of this process first, among which is what rocprofv3 has loaded."""
_WHOLE_PROCESS = 0


def roctx(name: str) -> None:
    """Call a function of ROCTx for all threads; say so where there is none, for nothing is recorded then."""
    for library in _ROCTX:
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_int
        function(_WHOLE_PROCESS)
        return
    log.warning("%s is in no library (%s): rocprofv3 does not know which steps to record", name, _ROCTX[1])
