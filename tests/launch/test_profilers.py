"""External profilers: the choice with its reason."""

from __future__ import annotations

import pytest

from aorta.errors import ConfigError, RunError
from aorta.launch import profilers


def only(*names):
    return lambda program: f"/opt/bin/{program}" if program in names else None


@pytest.mark.parametrize(
    ("vendor", "found", "resolved", "reason"),
    [
        ("nvidia", ("nsys",), "nsys", "NVIDIA GPUs, and nsys is installed"),
        ("nvidia", (), "none", "NVIDIA GPUs, but nsys is not installed on this machine"),
        ("nvidia", ("rocprofv3",), "none", "NVIDIA GPUs, but nsys is not installed on this machine"),
        ("amd", ("rocprofv3", "nsys"), "rocprofv3", "AMD GPUs, and rocprofv3 is installed"),
        ("amd", ("nsys",), "none", "AMD GPUs, but rocprofv3 is not installed on this machine"),
        (None, ("nsys", "rocprofv3"), "none", "the job has no GPU on this node"),
    ],
)
def test_auto_takes_the_vendors_profiler_where_it_is_installed(vendor, found, resolved, reason):
    choice = profilers.resolve("auto", vendor, only(*found))
    assert (choice.requested, choice.resolved, choice.reason) == ("auto", resolved, reason)
    assert choice.program == (None if resolved == "none" else f"/opt/bin/{resolved}")


def test_a_named_profiler_runs_without_a_gpu_but_not_without_its_program():
    assert profilers.resolve("nsys", None, only("nsys")).resolved == "nsys"
    with pytest.raises(RunError, match="nsys was requested, but is not installed on this machine") as caught:
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
