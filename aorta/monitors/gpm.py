"""Load of the parts of an NVIDIA GPU, by NVML's GPU performance monitoring (Hopper and later).

A value is the mean between two samples of the counters, so that the first call gives none. Other profilers
may hold the counters; then these columns stay empty, and nothing else is lost.
"""

from __future__ import annotations

from typing import Any

_COLUMNS = {
    "sm_active_pct": "NVML_GPM_METRIC_SM_UTIL",
    "tensor_active_pct": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active_pct": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


def available(nvml: Any) -> bool:
    """True if this binding of NVML knows these counters."""
    return hasattr(nvml, "nvmlGpmMetricsGet") and all(hasattr(nvml, name) for name in _COLUMNS.values())


class Gpm:
    """The counters of one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before: Any = None
        self._checked = False

    def read(self) -> dict[str, float | None]:
        """Mean of each column in % since the call before; empty at the first call.

        Raises:
            NVMLError_NotSupported: the GPU has no such counters, or another profiler holds them.
        """
        nvml = self._nvml
        try:
            self._check()
            now = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._handle, now)
            before, self._before = self._before, now
            return self._between(before, now) if before is not None else {}
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError as error:
            raise nvml.NVMLError_NotSupported(nvml.NVML_ERROR_NOT_SUPPORTED) from error

    def _check(self) -> None:
        if not self._checked:
            nvml = self._nvml
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise nvml.NVMLError_NotSupported(nvml.NVML_ERROR_NOT_SUPPORTED)
            self._checked = True

    def _between(self, before: Any, now: Any) -> dict[str, float | None]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_COLUMNS)
        asked.sample1, asked.sample2 = before, now
        for index, name in enumerate(_COLUMNS.values()):
            asked.metrics[index].metricId = getattr(nvml, name)
        try:
            nvml.nvmlGpmMetricsGet(asked)
        finally:
            nvml.nvmlGpmSampleFree(before)
        return {
            column: float(asked.metrics[index].value) if asked.metrics[index].nvmlReturn == 0 else None
            for index, column in enumerate(_COLUMNS)
        }
