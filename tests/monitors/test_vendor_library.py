"""NVML and amdsmi through stand-ins for their modules."""

from __future__ import annotations

import pytest

from aorta.monitors import vendor_library as library
from aorta.monitors.devices import Device, SourceError
from aorta.monitors.vendor_amdsmi import amdsmi_library
from aorta.monitors.vendor_library import LibrarySource, nvml_library
from tests.monitors.fakes import (
    AmdSmiLibraryException,
    FakeAmdsmi,
    FakeNvml,
    NVMLError,
    NVMLError_GpuIsLost,
    NVMLError_NotSupported,
)

A100, H100 = ("GPU-aaaa-1", "NVIDIA A100-SXM4-40GB"), ("GPU-bbbb-2", "NVIDIA H100 80GB HBM3")


def opened(nvml, *wanted, **environment):
    return LibrarySource(nvml_library(nvml), wanted, environment).open()


def one(source):
    (reading,) = source.sample()
    return reading.sample


def test_every_quantity_of_nvml_in_its_unit():
    gpu = one(opened(FakeNvml(H100)))
    assert (gpu.uuid, gpu.name, gpu.utilization_memory) == (*H100, 3)
    assert (gpu.memory_used_mb, gpu.memory_total_mb) == (2, 64)  # version 2 of the call
    assert (gpu.temperature, gpu.sm_clock_mhz, gpu.energy_mj, gpu.clock_event_reasons) == (
        41,
        1980,
        123_456,
        1,
    )
    assert gpu.power_draw_w == pytest.approx(83.527)


def test_the_second_model_of_a_node_is_gpu_0_of_a_job_that_runs_on_it():
    (reading,) = opened(FakeNvml(A100, H100), H100[0]).sample()
    assert (reading.gpu_id, reading.sample.index) == (0, 1)
    assert (reading.sample.uuid, reading.sample.name) == H100


def test_what_is_not_supported_is_empty_and_is_not_asked_again():
    nvml = FakeNvml(H100)
    nvml.broken["utilization"] = NVMLError_NotSupported("Not Supported")
    source = opened(nvml)
    assert one(source).utilization_gpu is None
    assert one(source).utilization_gpu is None
    assert one(source).power_draw_w is not None
    assert nvml.calls["utilization"] == 1
    assert source.errors == {}


def test_an_idle_gpu_is_zero():
    gpu = one(opened(FakeNvml(H100)))
    assert gpu.utilization_gpu == 0
    assert gpu.utilization_gpu is not None


def test_older_ways_are_used_where_the_newer_ones_fail():
    nvml = FakeNvml(H100)
    nvml.broken["memory_v2"] = nvml.broken["event_reasons"] = NVMLError_NotSupported("Not Supported")
    source = opened(nvml)
    for _ in range(2):
        gpu = one(source)
        assert (gpu.memory_used_mb, gpu.clock_event_reasons) == (9, 8)
    assert nvml.calls["memory_v2"] == nvml.calls["event_reasons"] == 1


def test_a_mig_instance_by_its_uuid_has_memory_but_no_utilisation():
    nvml = FakeNvml(H100, mig=("MIG-1", "MIG-2"))
    for source in (opened(nvml, "MIG-2"), opened(nvml, CUDA_VISIBLE_DEVICES="MIG-2")):
        gpu = one(source)
        assert (gpu.uuid, gpu.utilization_gpu, gpu.memory_used_mb) == ("MIG-2", None, 2)


def test_the_costly_energy_counter_is_read_once_a_minute(monkeypatch):
    nvml = FakeNvml(H100)
    clock = [10**9]
    monkeypatch.setattr(library.time, "monotonic_ns", lambda: clock[0])
    source = opened(nvml)
    assert one(source).energy_mj == 123_456
    clock[0] += 59 * 10**9
    assert one(source).energy_mj is None
    clock[0] += 1 * 10**9
    assert one(source).energy_mj == 123_456


def test_a_lost_gpu_gives_empty_readings_and_a_counted_reason_and_comes_back(monkeypatch):
    nvml = FakeNvml(A100, H100)
    clock = [10**9]
    monkeypatch.setattr(library.time, "monotonic_ns", lambda: clock[0])
    source = opened(nvml)
    source.sample()
    nvml.broken["power"] = NVMLError_GpuIsLost("GPU is lost")
    for _ in range(3):
        lost = source.sample()
        assert [reading.sample.uuid for reading in lost] == [A100[0], H100[0]]
        assert {reading.sample.utilization_gpu for reading in lost} == {None}
        clock[0] += 10**9
    assert source.errors == {"GPU is lost": 2 * 3}
    assert nvml.calls["nvmlInit"] == 1 + 1  # started anew once, then not before the pause is over
    clock[0] += library._RETRY_FIRST_S * 10**9
    source.sample()
    assert nvml.calls["nvmlInit"] == 1 + 2
    del nvml.broken["power"]
    assert [reading.sample.utilization_gpu for reading in source.sample()] == [0, 0]


def test_a_driver_that_does_not_start_again_is_tried_at_growing_intervals(monkeypatch):
    nvml = FakeNvml(H100)
    clock = [10**9]
    monkeypatch.setattr(library.time, "monotonic_ns", lambda: clock[0])
    source = opened(nvml)
    nvml.broken["power"] = nvml.broken["nvmlInit"] = NVMLError("Driver Not Loaded")
    for _ in range(600):
        assert one(source).utilization_gpu is None
        clock[0] += 10**9
    pauses = [5, 10, 20, 40, 60, 60, 60, 60, 60, 60, 60, 60]
    tries = 1 + sum(sum(pauses[: i + 1]) < 600 for i in range(len(pauses)))
    assert nvml.calls["nvmlInit"] == 1 + tries


@pytest.mark.parametrize(
    ("nvml", "wanted", "reason"),
    [
        (FakeNvml(), (), "nvml: no GPU on this node"),
        (FakeNvml(H100), ("GPU-cccc",), "nvml: GPU-cccc is not one of"),
        (FakeNvml(H100, mig=("MIG-1",)), ("MIG-7",), "nvml: MIG-7 is not one of"),
    ],
)
def test_no_gpu_of_the_job_is_a_reason_and_the_library_is_stopped(nvml, wanted, reason):
    with pytest.raises(SourceError, match=reason):
        opened(nvml, *wanted)
    assert not nvml.running


def test_no_driver_is_a_reason():
    nvml = FakeNvml(H100)
    nvml.broken["nvmlInit"] = NVMLError("Driver Not Loaded")
    with pytest.raises(SourceError, match="nvml: Driver Not Loaded"):
        opened(nvml)
    with pytest.raises(SourceError, match="nvml: Driver Not Loaded"):
        nvml_library(nvml).list_devices()


def test_devices_are_listed_with_their_instances_and_the_library_is_stopped():
    nvml = FakeNvml(A100, H100, mig=("MIG-1", "MIG-2"))
    parts = tuple(Device(1, uuid, "MIG 1g.10gb", memory_total_bytes=64 << 20) for uuid in ("MIG-1", "MIG-2"))
    assert nvml_library(nvml).list_devices() == [
        Device(0, *A100, memory_total_bytes=64 << 20),
        Device(1, *H100, memory_total_bytes=64 << 20, parts=parts),
    ]
    assert not nvml.running


def test_memory_that_cannot_be_read_is_none():
    nvml = FakeNvml(A100)
    nvml.broken["memory_v1"] = NVMLError_NotSupported("Not Supported")
    (device,) = nvml_library(nvml).list_devices()
    assert device.memory_total_bytes is None


def test_amdsmi_lists_memory_and_serial_numbers():
    first, second = amdsmi_library(FakeAmdsmi()).list_devices()
    assert (first.memory_total_bytes, first.aliases) == (196592 << 20, ("0xAB00",))
    assert second.index == 1


def test_closing_a_library_that_is_lost_does_not_raise():
    nvml = FakeNvml(H100)
    source = opened(nvml)
    nvml.broken["nvmlShutdown"] = NVMLError("Uninitialized")
    source.close()
    assert source.errors == {"Uninitialized": 1}


def test_amdsmi():
    source = LibrarySource(amdsmi_library(FakeAmdsmi()), ["GPU-ab01", "GPU-ab00"], {}).open()
    second, first = (reading.sample for reading in source.sample())
    assert (first.index, first.name, first.uuid) == (
        0,
        "Instinct MI300X",
        "0ef74a0-0000-1000-808f-7e20764e2714",
    )
    assert (first.utilization_gpu, first.utilization_memory, first.temperature) == (0, 4, 38)
    assert (first.memory_used_mb, first.memory_total_mb, first.sm_clock_mhz) == (284, 196592, 132)
    assert (first.power_draw_w, first.energy_mj) == (140, pytest.approx(1000 * 15.3 / 1000))
    assert (second.utilization_gpu, second.power_draw_w, second.temperature) == (None, None, 51)
    assert second.sm_clock_mhz == 133
    assert source.errors == {}


def test_amdsmi_failing_for_another_reason_is_counted(monkeypatch):
    smi = FakeAmdsmi()
    source = LibrarySource(amdsmi_library(smi), [], {"HIP_VISIBLE_DEVICES": "0"}).open()

    def fail(handle):
        raise AmdSmiLibraryException(14)

    monkeypatch.setattr(smi, "amdsmi_get_power_info", fail)
    assert one(source).memory_used_mb is None
    assert source.errors == {"Error code: 14": 1}
