"""External profilers: the choice with its reason, command lines as golden texts, and missing reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.errors import ConfigError, RunError
from aorta.launch import profilers


def only(*names):
    return lambda program: f"/opt/bin/{program}" if program in names else None


@pytest.mark.parametrize(
    ("vendor", "found", "resolved", "reason"),
    [
        ("nvidia", ("nsys",), "nsys", "NVIDIA GPUs, and nsys is in PATH"),
        ("nvidia", (), "none", "NVIDIA GPUs, but nsys is not in PATH"),
        ("nvidia", ("rocprofv3",), "none", "NVIDIA GPUs, but nsys is not in PATH"),
        ("amd", ("rocprofv3", "nsys"), "rocprofv3", "AMD GPUs, and rocprofv3 is in PATH"),
        ("amd", ("nsys",), "none", "AMD GPUs, but rocprofv3 is not in PATH"),
        (None, ("nsys", "rocprofv3"), "none", "the job has no GPU on this node"),
    ],
)
def test_auto_takes_the_vendors_profiler_where_it_is_installed(vendor, found, resolved, reason):
    choice = profilers.resolve("auto", vendor, only(*found))
    assert (choice.requested, choice.resolved, choice.reason) == ("auto", resolved, reason)


def test_a_named_profiler_runs_without_a_gpu_but_not_without_its_program():
    assert profilers.resolve("nsys", None, only("nsys")).resolved == "nsys"
    with pytest.raises(RunError, match="nsys was asked for and is not in PATH") as caught:
        profilers.resolve("nsys", "nvidia", only())
    assert "--profiler none" in caught.value.hint


def test_none_and_unknown():
    assert profilers.resolve("none", "nvidia", only("nsys")).resolved == "none"
    with pytest.raises(ConfigError, match="'ncu' is unknown"):
        profilers.resolve("ncu", "nvidia", only("ncu"))


def test_two_tracers_are_refused_and_one_is_not():
    with pytest.raises(ConfigError, match=r"profiling\.enabled"):
        profilers.refuse_two_tracers("nsys", torch_profiler=True)
    profilers.refuse_two_tracers("none", torch_profiler=True)
    profilers.refuse_two_tracers("nsys", torch_profiler=False)


def test_nsys_around_a_rank_with_a_gpu_captures_the_range_and_survives_its_end():
    argv = profilers.wrap(
        "nsys",
        ["python", "t.py"],
        Path("/r/nsys"),
        profilers.report_stem("ranking", 2),
        gpu=True,
        ranged=True,
    )
    assert " ".join(argv) == (
        "nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi "
        "--capture-range-end=stop --wait=primary -f true "
        "-o /r/nsys/ranking_2node_profile_rank%q{RANK}_%h_%p python t.py"
    )


@pytest.mark.parametrize(
    ("gpu", "ranged", "traced"), [(True, False, "cuda,nvtx"), (False, True, "nvtx,osrt")]
)
def test_no_capture_range_where_nothing_would_begin_it(gpu, ranged, traced):
    argv = profilers.nsys_prefix(Path("/r"), "x", gpu=gpu, ranged=ranged)
    assert not [word for word in argv if word.startswith("--capture-range")]
    assert argv[argv.index("-t") + 1] == traced


def test_rocprof_names_rank_host_and_process_and_its_format():
    argv = profilers.wrap(
        "rocprofv3", ["python", "t.py"], Path("/r/rocprof"), "x_1node_profile", gpu=False, ranged=True
    )
    assert " ".join(argv) == (
        "rocprofv3 --kernel-trace --hip-runtime-trace --rccl-trace --marker-trace --memory-copy-trace "
        "--stats --summary --output-format csv -d /r/rocprof "
        "-o x_1node_profile_rank%env{RANK}%_%hostname%_%pid% -- python t.py"
    )


def test_without_a_profiler_the_command_is_itself():
    assert profilers.wrap("none", ["python", "t.py"], Path("/r"), "x", gpu=True, ranged=True) == [
        "python",
        "t.py",
    ]


def test_missing_reports_tells_rank_1_from_rank_10():
    stem = "ranking_2node_profile"
    found = [f"{stem}_rank0_a_11.nsys-rep", f"{stem}_rank10_a_12.nsys-rep", "other_rank1_a_13.nsys-rep"]
    assert profilers.missing_reports(found, [0, 1, 10], stem) == [1]
    assert profilers.missing_reports(found, [0, 10], stem) == []


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (["x", "Import Failed: no space"], "the profiler could not write it (is the disk full?): no space"),
        (
            ["Generated:", "    /tmp/report1.nsys-rep"],
            "the profiler left it in its temporary folder: /tmp/report1.nsys-rep",
        ),
        (["loss 0.3"], "the profiler wrote none, and the rank's output does not say why"),
    ],
)
def test_why_a_report_is_missing(output, expected):
    assert profilers.why_no_report(output) == expected
