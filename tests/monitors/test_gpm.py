"""NVML's performance monitoring through a stand-in for its module."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aorta.monitors.gpm import Gpm, available
from tests.monitors.fakes import NVMLError, NVMLError_GpuIsLost, NVMLError_NotSupported


class Module:
    """Counters that grow by their metric's number with each sample."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10

    def __init__(self, supported=1, error=None, unknown=()):
        self.supported, self.error, self.unknown = supported, error, unknown
        self.made, self.freed = [], []

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self):
        self.made.append(len(self.made))
        return self.made[-1]

    def nvmlGpmSampleGet(self, handle, sample):
        if self.error is not None:
            raise self.error

    def nvmlGpmSampleFree(self, sample):
        self.freed.append(sample)

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(
            metrics=[SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(8)]
        )

    def nvmlGpmMetricsGet(self, asked):
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = metric.metricId * (asked.sample2 - asked.sample1)
            metric.nvmlReturn = int(metric.metricId in self.unknown)


def test_the_first_call_has_no_value_and_the_next_ones_are_since_the_call_before():
    nvml = Module()
    gpm = Gpm(nvml, "handle")
    assert gpm.read() == {}
    assert gpm.read() == {"sm_active_pct": 2.0, "tensor_active_pct": 5.0, "dram_active_pct": 10.0}
    assert nvml.freed == [0]


def test_a_metric_that_this_card_lacks_is_empty_and_a_measured_zero_is_zero():
    nvml = Module(unknown={5})
    gpm = Gpm(nvml, "handle")
    gpm.read()
    assert gpm.read()["tensor_active_pct"] is None
    nvml.nvmlGpmSampleAlloc = lambda: 1  # no counter has moved since
    assert gpm.read()["sm_active_pct"] == 0.0


@pytest.mark.parametrize("module", [Module(supported=0), Module(error=NVMLError("in use"))])
def test_a_card_without_counters_or_with_counters_in_use_is_not_asked_again(module):
    with pytest.raises(NVMLError_NotSupported):
        Gpm(module, "handle").read()


def test_a_lost_gpu_stays_one():
    with pytest.raises(NVMLError_GpuIsLost):
        Gpm(Module(error=NVMLError_GpuIsLost("lost")), "handle").read()


def test_an_older_binding_has_none():
    assert available(Module())
    assert not available(SimpleNamespace())
