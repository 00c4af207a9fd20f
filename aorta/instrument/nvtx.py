"""NVTX ranges around the parts of a step, if a profiler listens. On a GPU, they are torch's own ranges.
Without a GPU, they come from the Python package `nvtx`, if it is installed and this process runs under nsys.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from aorta.artefacts import names


@dataclass(frozen=True, slots=True)
class NvtxRanges:
    """Nested ranges of this thread."""

    push: Callable[[str], object]
    pop: Callable[[], object]


def ranges_for(device: torch.device, environment: Mapping[str, str] | None = None) -> NvtxRanges | None:
    """The ranges of a step on `device`; None if no profiler would see them."""
    if device.type == "cuda":
        env = os.environ if environment is None else environment
        # NVTX finds whoever listens by this variable, and by nothing else; roctx has none.
        if torch.version.hip is None and "NVTX_INJECTION64_PATH" not in env:
            return None
        return NvtxRanges(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    if not host_ranges_seen(environment):
        return None
    import nvtx

    return NvtxRanges(nvtx.push_range, nvtx.pop_range)


def host_ranges_seen(environment: Mapping[str, str] | None = None) -> bool:
    """True if this process runs under nsys (`AORTA_PROFILER`) and has the package `nvtx`."""
    env = os.environ if environment is None else environment
    return env.get(names.PROFILER) == "nsys" and importlib.util.find_spec("nvtx") is not None
