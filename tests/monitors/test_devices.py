"""Which GPUs are the job's."""

from __future__ import annotations

import pytest

from aorta.monitors.devices import Device, SourceError, choose, same_id, visible

A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
MIXED = [Device(0, "GPU-aaaa-1", A100), Device(1, "GPU-bbbb-2", H100)]
ALIKE = [Device(i, f"GPU-{i}000", H100) for i in range(4)]


def indices(devices, wanted=(), vendor="nvidia", **environment):
    return [device.index for device in choose(devices, wanted, environment, vendor)]


def test_on_a_node_with_two_models_the_job_is_found_by_identifier():
    assert indices(MIXED, ["GPU-bbbb-2"]) == [1]
    assert indices(MIXED, ["bbbb-2"], CUDA_VISIBLE_DEVICES="0") == [1]  # torch prints it without the prefix


def test_an_index_that_could_mean_either_model_is_refused():
    with pytest.raises(SourceError, match="name the GPUs by UUID"):
        choose(MIXED, [], {"CUDA_VISIBLE_DEVICES": "0"}, "nvidia")
    assert indices(MIXED, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0]
    assert indices(MIXED, CUDA_VISIBLE_DEVICES="GPU-bb") == [1]


def test_the_order_is_the_jobs():
    assert indices(ALIKE, ["GPU-2000", "GPU-0000"]) == [2, 0]
    assert indices(ALIKE, CUDA_VISIBLE_DEVICES="3, 1") == [3, 1]


def test_without_a_restriction_all():
    assert indices(ALIKE) == [0, 1, 2, 3]
    assert indices(MIXED) == [0, 1]


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "-1,2"])
def test_a_job_that_sees_none_has_none(value):
    with pytest.raises(SourceError, match="hides all GPUs"):
        choose(ALIKE, [], {"CUDA_VISIBLE_DEVICES": value}, "nvidia")


def test_what_follows_an_invalid_entry_is_not_seen():
    assert indices(ALIKE, CUDA_VISIBLE_DEVICES="2,-1,3") == [2]


@pytest.mark.parametrize("wanted", ["GPU-9999", "GPU-", "GPU", "MIG-1"])
def test_a_gpu_that_is_not_here_is_named_with_those_that_are(wanted):
    with pytest.raises(SourceError, match=f"{wanted} is not one of this node's GPUs .*GPU-3000"):
        choose(ALIKE, ["GPU-1000", wanted], {}, "nvidia")


@pytest.mark.parametrize("value", ["4", "GPU-9", "MIG-1"])
def test_a_mask_that_names_no_gpu_is_shown_with_those_that_are_here(value):
    with pytest.raises(SourceError, match=f"CUDA_VISIBLE_DEVICES='{value}' .*GPU-3000"):
        choose(ALIKE, [], {"CUDA_VISIBLE_DEVICES": value}, "nvidia")


def test_a_node_without_gpus():
    with pytest.raises(SourceError, match="no GPU"):
        choose([], ["GPU-1"], {}, "nvidia")


def test_an_alias_is_exact():
    cards = [Device(i, f"uuid{i}", None, (f"card{i}",)) for i in range(11)]
    assert indices(cards, ["card1"], vendor="amd") == [1]
    assert indices(cards, ["CARD10"], vendor="amd") == [10]


def test_the_same_identifier_in_different_dress():
    assert same_id("0xAB83D2FF") == same_id("GPU-ab83d2ff") == "ab83d2ff"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,0"}, [3, 2]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,7"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-3000,GPU-1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [0]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amd_masks_count_within_each_other(environment, expected):
    assert [device.index for device in visible(ALIKE, environment, "amd").devices] == expected


DIVIDED = Device(2, "GPU-bbcc-3", H100, parts=(Device(2, "MIG-1", H100), Device(2, "MIG-2", H100)))
THREE = [Device(0, "GPU-aaaa-1", H100), Device(1, "GPU-bbbb-2", H100), DIVIDED]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("", []),
        ("1", ["GPU-bbbb-2"]),
        ("1,0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("0,-1,1", ["GPU-aaaa-1"]),
        ("0,9,1", ["GPU-aaaa-1"]),
        ("GPU-bbbb-2", ["GPU-bbbb-2"]),
        ("GPU-a", ["GPU-aaaa-1"]),
        ("GPU-bb", []),
        ("MIG-2", ["MIG-2"]),
        ("GPU-bbcc", ["GPU-bbcc-3"]),
        (" 0 , 1 ", ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("NoDevFiles", []),
    ],
)
def test_masks_as_the_cuda_runtime_reads_them(mask, expected):
    found = visible(THREE, {"CUDA_VISIBLE_DEVICES": mask}, "nvidia").devices
    assert [device.uuid for device in found] == expected


def test_a_gpu_without_a_uuid_has_another_identifier():
    assert Device(2, None, None, ("card2",)).identifier == "card2"
    assert Device(2, "u", None, ("card2",)).identifier == "u"
