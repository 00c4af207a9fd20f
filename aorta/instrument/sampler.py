"""Steps that are recorded kernel by kernel, inside the training process."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from aorta.artefacts import names
from aorta.errors import ConfigError
from aorta.instrument.activity import Kernel, kernels_of

log = logging.getLogger(__name__)


def _missing(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "no GPU here"
    if torch.version.hip is not None:
        return "aorta does not use torch's traces on ROCm, where exporting a trace is known to crash"
    tool = os.environ.get(names.PROFILER, "none")
    return f"this process runs under {tool}" if tool in ("nsys", "rocprofv3") else None


class KernelSampler:
    """torch.profiler with CUDA activity alone, for the last of every `interval` steps.

    The step before a sampled one starts the recording; both are slower than others and have the phase
    `profiler`. The others pay nothing but what the driver keeps switched on once it has recorded.

    Args:
        interval: steps from sample to sample; 0: none. At least 2.
        device: where the model is; without an NVIDIA GPU there is nothing to record.
    """

    def __init__(self, interval: int, device: torch.device) -> None:
        if interval == 1:
            raise ConfigError(
                "capture.kernel_interval is 1, but a recording needs a step to start",
                "set capture.kernel_interval to 0, or to 2 or more",
            )
        missing = _missing(device)
        self._interval = interval if missing is None else 0
        if interval and missing is not None:
            log.warning("capture.kernel_interval is ignored, so no kernels are recorded: %s", missing)
        self._profile: profile | None = None
        self._since_ns = 0
        self._taken: list[Kernel] | None = None

    @property
    def active(self) -> bool:
        """True if any step is recorded."""
        return self._interval > 0

    def slows(self, global_step: int) -> bool:
        """True if the step is recorded, or starts a recording."""
        return self.active and global_step % self._interval >= self._interval - 2

    def start(self) -> None:
        """Before the first step."""
        if not self._interval or self._profile is not None:
            return
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        self._profile = profile(
            activities=[ProfilerActivity.CUDA],
            schedule=schedule(wait=self._interval - 2, warmup=1, active=1, repeat=0),
            on_trace_ready=self._take,
        )
        self._profile.start()

    def after_step(self, host_start_wall_ns: int) -> list[Kernel] | None:
        """After a step that the host began at `host_start_wall_ns`: its kernels, if it was a sampled one."""
        if self._profile is None:
            return None
        self._since_ns = host_start_wall_ns
        self._profile.step()
        taken, self._taken = self._taken, None
        return taken

    def close(self) -> None:
        """Stop, also in the middle of a recording."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _take(self, finished: profile) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            finished.export_chrome_trace(str(path))
            try:
                self._taken = kernels_of(path.read_bytes(), self._since_ns)
            except (ValueError, TypeError, KeyError, OSError) as error:
                log.warning("the kernels of a step could not be read: %s", error)
