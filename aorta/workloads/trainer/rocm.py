"""Differences on ROCm: two rules about the configuration, and the SMI sampler."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import torch

from aorta.config import schema

log = logging.getLogger(__name__)

TOOLS: dict[str, tuple[str, ...]] = {
    "amd-smi": ("metric", "--usage", "--mem-usage", "--power", "--temperature", "--clock", "--json"),
    "rocm-smi": ("--showuse", "--showmemuse", "--showpower", "--showtemp", "--showclocks", "--json"),
}
"""Programs that sample, the better one first, and what they are asked."""

SELECT = {"amd-smi": "-g", "rocm-smi": "-d"}
PATIENCE_S = 10.0


def adapt(config: schema.Config, hip: bool, named: Collection[str]) -> tuple[schema.Config, list[str]]:
    """The configuration as it can run here, and in words what was changed.

    Args:
        config: as it was written.
        hip: whether this torch is built for ROCm.
        named: dotted keys that the user overrode on the command line: those are taken at their word.
    """
    if not hip:
        return config, []
    changed = []
    if config.compile.backend == "inductor" and "compile.backend" not in named:
        config = msgspec.structs.replace(
            config, compile=msgspec.structs.replace(config.compile, backend="aot_eager")
        )
        if config.compile.enabled:
            changed.append(
                "compile.backend is aot_eager instead of inductor on ROCm; to keep inductor, add"
                " --override compile.backend=inductor"
            )
    if config.profiling.chrome_trace:
        config = msgspec.structs.replace(
            config, profiling=msgspec.structs.replace(config.profiling, chrome_trace=False)
        )
        changed.append("profiling.chrome_trace is off on ROCm, where exporting a trace is known to crash")
    return config, changed


def missing() -> str | None:
    """The reason why `--enable-rocm-metrics` cannot work here; None if it can."""
    if torch.version.hip is None:
        return "this torch is not built for ROCm"
    if _tool() is None:
        return "neither amd-smi nor rocm-smi is installed here"
    return None


def _tool() -> str | None:
    return next((name for name in TOOLS if shutil.which(name)), None)


def physical_device(local_rank: int, environment: Mapping[str, str]) -> str | None:
    """The number by which the SMI tools know the GPU of a rank: torch counts only the visible ones. None
    where the visible ones are not named by number.
    """
    index = local_rank
    # HIP counts among what ROCR shows, and reads CUDA's variable only where its own is not set.
    hip = "HIP_VISIBLE_DEVICES" if environment.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    for name in (hip, "ROCR_VISIBLE_DEVICES"):
        visible = [item.strip() for item in environment.get(name, "").split(",") if item.strip()]
        if not visible:
            continue
        if index >= len(visible) or not visible[index].isdigit():
            return None
        index = int(visible[index])
    return str(index)


def smi_command(tool: str, device: str | None) -> list[str]:
    """Returns one sample of one GPU, or of all GPUs where `device` is None."""
    return [tool, *TOOLS[tool], *([SELECT[tool], device] if device is not None else [])]


class SmiSampler:
    """Runs the tool again and again in a thread of its own; the training thread only picks up what it said.

    Args:
        command: one sample.
        interval_s: from the start of a sample to the next.
    """

    def __init__(self, command: list[str], interval_s: float) -> None:
        self._command = command
        self._interval_s = interval_s
        self._fresh: str | None = None
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aorta-smi", daemon=True)

    def take(self) -> str | None:
        """The newest output, once; None where none came since the last call."""
        fresh, self._fresh = self._fresh, None
        return fresh

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample while the body runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sample()
            self._stop.wait(self._interval_s)

    def _sample(self) -> None:
        try:
            done = subprocess.run(
                self._command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            reason = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            if not done.returncode:
                self._fresh = done.stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = [str(error)]
        if reason and not self._failed:
            self._failed = True
            log.warning("%s: %s; rocm_smi_output stays null then", self._command[0], reason[0])


@contextmanager
def sampled(asked: bool, local_rank: int, interval_s: float) -> Iterator[SmiSampler | None]:
    """The sampler of `--enable-rocm-metrics` around the body; None where it was not asked for or cannot work,
    which is said once per node.
    """
    reason = missing() if asked else None
    if reason is not None and local_rank == 0:
        log.warning("--enable-rocm-metrics: %s; rocm_smi_output stays null", reason)
    tool = _tool()
    if not asked or reason is not None or tool is None:
        yield None
        return
    sampler = SmiSampler(smi_command(tool, physical_device(local_rank, os.environ)), interval_s)
    with sampler.running():
        yield sampler
