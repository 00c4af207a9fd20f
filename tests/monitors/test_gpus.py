"""The GPUs that a rank will see."""

from __future__ import annotations

import pytest

from aorta.errors import RunError
from aorta.monitors.devices import Device, SourceError
from aorta.monitors.gpu import Gpus, find_gpus

A = Device(0, "GPU-aaaa-1", "A100", memory_total_bytes=100)
B = Device(1, "GPU-bbbb-2", "H100", memory_total_bytes=200)
C = Device(2, "GPU-bbcc-3", "H100", parts=(Device(2, "MIG-1", "MIG 1g"), Device(2, "MIG-2", "MIG 1g")))


def listers(*devices, vendor="nvidia"):
    def absent():
        raise SourceError("not here")

    return (("absent", "nvidia", absent), ("empty", "nvidia", list), ("used", vendor, lambda: list(devices)))


def uuids(found):
    return [gpu.uuid for gpu in found.visible]


def test_without_a_driver_there_are_none():
    assert find_gpus({}, listers()[:2]) == Gpus(None, [], "none")


def test_the_job_on_the_second_of_two_models_sees_it_as_gpu_0():
    found = find_gpus({"CUDA_VISIBLE_DEVICES": "1"}, listers(A, B))
    assert (found.vendor, found.source) == ("nvidia", "used")
    (gpu,) = found.visible
    assert (gpu.index, gpu.uuid, gpu.name, gpu.memory_total_bytes) == (0, "GPU-bbbb-2", "H100", 200)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["GPU-aaaa-1", "GPU-bbbb-2", "MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbcc"}, ["MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-2,0"}, ["MIG-2", "GPU-aaaa-1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_a_divided_gpu_stands_for_its_first_instance(environment, expected):
    assert uuids(find_gpus(environment, listers(A, B, C))) == expected


def test_a_mig_instance_does_not_claim_the_whole_gpus_memory():
    (gpu,) = find_gpus({"CUDA_VISIBLE_DEVICES": "MIG-2"}, listers(A, B, C)).visible
    assert gpu.memory_total_bytes is None


def test_an_order_that_the_user_changed_and_that_is_unknown_is_refused():
    environment = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    with pytest.raises(RunError, match="hint: set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        find_gpus(environment, listers(A, B))
    assert uuids(find_gpus(environment, listers(B))) == ["GPU-bbbb-2"]


def test_an_amd_gpu_without_a_uuid_is_named_so_that_the_monitor_finds_it():
    card = Device(2, None, None, ("card2",))
    (gpu,) = find_gpus({"HIP_VISIBLE_DEVICES": "0"}, listers(card, vendor="amd")).visible
    assert (gpu.uuid, gpu.name) == ("card2", "GPU")
