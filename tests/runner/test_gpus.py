"""The job's GPUs: masks, MIG, sharing one machine, and the vendors' tools."""

from __future__ import annotations

import json

import pytest

from aorta.runner.gpus import (
    Device,
    ask_amd_smi,
    ask_nvidia_smi,
    ask_rocm_smi,
    parse_nvidia_smi,
    read_nvml,
    select,
)

A = Device("GPU-aaaa-1", "A100", 100)
B = Device("GPU-bbbb-2", "H100", 200)
C = Device("GPU-bbcc-3", "H100", 200, parts=("MIG-1", "MIG-2"))


def uuids(found):
    return [gpu.uuid for gpu in found]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, ["GPU-aaaa-1", "GPU-bbbb-2", "MIG-1"]),
        ("", []),
        ("1", ["GPU-bbbb-2"]),
        ("1,0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("0,-1,1", ["GPU-aaaa-1"]),
        ("0,9,1", ["GPU-aaaa-1"]),
        ("GPU-bbbb-2", ["GPU-bbbb-2"]),
        ("GPU-a", ["GPU-aaaa-1"]),
        ("GPU-bb", []),
        ("MIG-2", ["MIG-2"]),
        ("GPU-bbcc", ["MIG-1"]),
        (" 0 , 1 ", ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("NoDevFiles", []),
    ],
)
def test_masks_as_the_cuda_runtime_reads_them(mask, expected):
    assert uuids(select([A, B, C], mask)) == expected


def test_the_job_on_the_second_of_two_models_sees_it_as_gpu_0():
    (gpu,) = select([A, B], "1")
    assert (gpu.index, gpu.uuid, gpu.name, gpu.memory_total_bytes) == (0, "GPU-bbbb-2", "H100", 200)


def test_a_mig_instance_does_not_claim_the_whole_gpus_memory():
    (gpu,) = select([C], "MIG-2")
    assert gpu.memory_total_bytes is None


class Nvml:
    """Stands in for pynvml: two GPUs, the second divided in two of at most three instances."""

    class NVMLError(Exception):
        pass

    def __init__(self, broken=False):
        self.broken, self.closed = broken, 0

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError

    def nvmlShutdown(self):
        self.closed += 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"{index}"

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle == "1":
            raise self.NVMLError
        return type("Memory", (), {"total": 7})

    def nvmlDeviceGetMigMode(self, handle):
        if handle == "0":
            raise self.NVMLError
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index == 1:
            raise self.NVMLError
        return f"{handle}/{index}"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}".encode() if "/" not in handle else f"MIG-{handle}"

    def nvmlDeviceGetName(self, handle):
        return "H100"


def test_nvml_reads_devices_and_their_instances():
    nvml = Nvml()
    assert read_nvml(nvml) == [
        Device("GPU-0", "H100", 7),
        Device("GPU-1", "H100", None, ("MIG-1/0", "MIG-1/2")),
    ]
    assert nvml.closed == 1


def test_no_driver_is_no_gpu():
    assert read_nvml(Nvml(broken=True)) == []


QUERY = "GPU-aa, NVIDIA A100, 40960\nGPU-bb, NVIDIA H100L-2-24C, [N/A]\n"
LISTING = """GPU 0: NVIDIA A100 (UUID: GPU-aa)
  MIG 1g.5gb Device 0: (UUID: MIG-x)
  MIG 1g.5gb Device 1: (UUID: MIG-y)
GPU 1: NVIDIA H100L-2-24C (UUID: GPU-bb)
"""


def test_nvidia_smi():
    expected = [
        Device("GPU-aa", "NVIDIA A100", 40960 * 1024 * 1024, ("MIG-x", "MIG-y")),
        Device("GPU-bb", "NVIDIA H100L-2-24C", None),
    ]
    assert parse_nvidia_smi(QUERY, LISTING) == expected
    assert ask_nvidia_smi(lambda argv: LISTING if "-L" in argv else QUERY) == expected
    assert ask_nvidia_smi(lambda argv: None) == []
    assert parse_nvidia_smi("NVIDIA-SMI has failed because it could not communicate\n", "") == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi(wrapped):
    listed = [{"gpu": 0, "bdf": "0000:03:00.0", "uuid": "u0"}, {"gpu": 1, "bdf": "0000:04:00.0"}]
    static = [{"gpu": 0, "asic": {"market_name": "MI300X"}, "vram": {"size": {"value": 2, "unit": "MB"}}}]

    def run(argv):
        rows = listed if argv[1] == "list" else static
        return json.dumps({"gpu_data": rows} if wrapped else rows)

    assert ask_amd_smi(run) == [Device("u0", "MI300X", 2 << 20), Device("0000:04:00.0", "AMD GPU", None)]
    assert ask_amd_smi(lambda argv: "no json") == []


def test_rocm_smi_in_card_order():
    text = json.dumps(
        {
            "card10": {"Unique ID": "0xb", "Card series": "MI250", "VRAM Total Memory (B)": "9"},
            "card2": {"Unique ID": "N/A", "Card Series": "MI300X"},
            "system": {"Driver version": "6"},
        }
    )
    assert ask_rocm_smi(lambda argv: text) == [Device("card2", "MI300X", None), Device("GPU-b", "MI250", 9)]
    assert ask_rocm_smi(lambda argv: None) == []
