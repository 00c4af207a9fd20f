"""Nsight Systems: where it is found, its versions, and its command lines as golden texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.errors import RunError
from aorta.launch import nsys


def nowhere(name):
    return None


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return str(path)


def test_the_named_one_is_taken_then_the_one_in_path():
    def which(name):
        return {"nsys": "/usr/bin/nsys", "/opt/n/nsys": "/opt/n/nsys"}.get(name)

    assert nsys.find({"AORTA_NSYS": "/opt/n/nsys"}, which) == "/opt/n/nsys"
    assert nsys.find({}, which) == "/usr/bin/nsys"
    with pytest.raises(RunError, match="AORTA_NSYS is '/absent'"):
        nsys.find({"AORTA_NSYS": "/absent"}, which)


def test_one_that_came_with_nsight_compute_counts_and_the_newest_of_them(tmp_path):
    assert nsys.find({}, nowhere, [tmp_path]) is None
    old = program(tmp_path / "nsight-compute-2024.1.0/host/target-linux-x64/nsys")
    assert nsys.find({}, nowhere, [tmp_path]) == old
    new = program(tmp_path / "nsight-compute-2025.3.1/host/target-linux-x64/nsys")
    assert nsys.find({}, nowhere, [tmp_path]) == new
    whole = program(tmp_path / "nsight-systems-2023.4/bin/nsys")
    assert nsys.find({"CUDA_HOME": str(tmp_path)}, nowhere, []) == whole


@pytest.mark.parametrize("place", ["host-linux-x64", "linux-desktop-glibc_2_11_3-x64"])
def test_the_importer_is_beside_the_program(tmp_path, place):
    own = program(tmp_path / "host/target-linux-x64/nsys")
    assert nsys.importer(own, nowhere) is None
    assert nsys.importer(own, lambda name: f"/usr/bin/{name}") == "/usr/bin/QdstrmImporter"
    beside = program(tmp_path / "host" / place / "QdstrmImporter")
    assert nsys.importer(own, nowhere) == beside


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NVIDIA Nsight Systems version 2022.4.2.1-df9881f", None),
        ("NVIDIA Nsight Systems version 2026.2.1.210", None),
        ("NVIDIA Nsight Systems version 2021.3.1", "2021.3 is older than 2022.4"),
        ("NVIDIA Nsight Systems version 2027.1", "2027.1 is newer than 2026.2"),
        (None, "does not print its version"),
    ],
)
def test_versions_outside_of_the_known_range_are_said(text, words):
    note = nsys.version_note(text)
    assert note is None if words is None else words in note


@pytest.mark.parametrize(
    ("version", "package", "seen"),
    [
        ("version 2023.4.4", "0.2.11", True),
        ("version 2023.4.4", "0.2.12", False),
        ("version 2025.3.1", "0.2.17", True),
        ("version 2025.3.1", None, False),
    ],
)
def test_whether_ranges_of_the_package_reach_it(version, package, seen):
    assert nsys.sees_nvtx(version, package) is seen


OFFER = "Possible --gpu-metrics-device values are:\n\t0: H100 PCI[0]\n\t1: H100 PCI[1]\n\tall: Select all\n"


@pytest.mark.parametrize(
    ("offered", "gpus", "option", "words"),
    [
        (OFFER, 2, "all", "all GPUs"),
        (OFFER, 1, None, "the node has 2 GPUs and the job 1"),
        (OFFER + "\tcuda-visible: those\n", 1, "cuda-visible", "of the job"),
        (
            "Insufficient privilege, see ERR_NVGPUCTRPERM",
            2,
            None,
            "not permitted on this machine: Insuff",
        ),
        ("None of the installed GPUs are supported", 2, None, "offers no GPU for them: None of"),
        ("", 2, None, "no answer"),
    ],
)
def test_gpu_metrics_only_where_they_can_be_sampled(offered, gpus, option, words):
    for name in nsys.METRICS_OPTIONS:
        found, reason = nsys.metrics_option(name, offered, gpus)
        assert found == (option and f"{name}={option}")
        assert words in reason


def test_with_a_gpu_the_captured_range_is_cudas_and_the_trainer_survives_its_end():
    argv = nsys.prefix("nsys", Path("/r/nsys"), "ranking_2node_profile", gpu=True, ranged=True)
    assert " ".join(argv) == (
        "nsys profile -t cuda,nvtx -s none --cpuctxsw=none --cuda-graph-trace=node "
        "--capture-range=cudaProfilerApi --capture-range-end=stop --wait=primary -f true "
        "-o /r/nsys/ranking_2node_profile_rank%q{RANK}_%h_%p"
    )


def test_without_a_gpu_it_is_an_nvtx_range():
    argv = nsys.prefix("/opt/nsys", Path("/r"), "x", gpu=False, ranged=True)
    assert " ".join(argv) == (
        "/opt/nsys profile -t nvtx,osrt -s none --cpuctxsw=none --osrt-threshold=10000 "
        "--capture-range=nvtx --nvtx-capture=aorta.capture "
        "--capture-range-end=stop --wait=primary -f true -o /r/x_rank%q{RANK}_%h_%p"
    )


@pytest.mark.parametrize(("gpu", "traced"), [(True, "cuda,nvtx"), (False, "nvtx,osrt")])
def test_no_capture_range_where_nothing_would_begin_it(gpu, traced):
    argv = nsys.prefix("nsys", Path("/r"), "x", gpu=gpu, ranged=False)
    assert not [word for word in argv if word.startswith("--capture-range")]
    assert argv[argv.index("-t") + 1] == traced
