"""External profilers: which one runs, why, and its command line around one rank. Pure: nothing is executed
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from aorta.artefacts.records import ProfilerChoice
from aorta.config.schema import Config
from aorta.errors import ConfigError, RunError
from aorta.monitors.devices import Vendor

Which = Callable[[str], str | None]

NAMES = ("auto", "none", "nsys", "rocprofv3")
_TOOL: dict[Vendor, str] = {"nvidia": "nsys", "amd": "rocprofv3"}
_INSTALL = {
    "nsys": "install Nsight Systems on the compute nodes or load its module; or use --profiler none",
    "rocprofv3": "install rocprofiler-sdk (ROCm 6.2 or newer) on the compute nodes or load its module; "
    "or use --profiler none",
}


def resolve(requested: str, vendor: Vendor | None, which: Which) -> ProfilerChoice:
    """The profiler that runs on a node and the reason, in words.

    Args:
        requested: one of `NAMES`.
        vendor: of the GPUs that the job has on this node; None where it has none.
        which: finds a program in PATH, as `shutil.which` does.

    Raises:
        ConfigError: `requested` is no profiler that we know.
        RunError: a profiler was named and is not installed on this node.
    """
    if requested not in NAMES:
        raise ConfigError(f"profiler {requested!r} is unknown", f"one of {', '.join(NAMES)}")
    if requested == "none":
        return ProfilerChoice(requested=requested, resolved="none", reason="switched off")
    if requested == "auto":
        return _automatic(vendor, which)
    if which(requested) is None:
        raise RunError(f"profiler {requested} was asked for and is not in PATH here", _INSTALL[requested])
    return ProfilerChoice(requested=requested, resolved=requested, reason="asked for by name")


def _automatic(vendor: Vendor | None, which: Which) -> ProfilerChoice:
    if vendor is None:
        return ProfilerChoice(requested="auto", resolved="none", reason="the job has no GPU on this node")
    tool = _TOOL[vendor]
    name = {"nvidia": "NVIDIA", "amd": "AMD"}[vendor]
    if which(tool) is None:
        reason = f"{name} GPUs, but {tool} is not in PATH"
        return ProfilerChoice(requested="auto", resolved="none", reason=reason)
    return ProfilerChoice(requested="auto", resolved=tool, reason=f"{name} GPUs, and {tool} is in PATH")


def refuse_two_tracers(resolved: str, torch_profiler: bool) -> None:
    """Refuse torch.profiler inside an external profiler: two tracers cannot have the GPU of one process.

    Raises:
        ConfigError: `torch_profiler` is on while `resolved` is a profiler.
    """
    if torch_profiler and resolved != "none":
        raise ConfigError(
            f"profiling.enabled is true while the job runs under {resolved}: "
            "two profilers cannot trace the GPU of one process",
            "use --profiler none with torch.profiler, or profiling.enabled=false",
        )


def refuse_named_tracer(asked: str | None, config: Config, *, own_program: bool) -> None:
    """`refuse_two_tracers` before anything is submitted, where the profiler is named (not `auto`).

    Args:
        asked: of `NAMES`, on the command line; None: the configuration's.
        config: of the run.
        own_program: the user's program runs and does not read `config`.

    Raises:
        ConfigError: as `refuse_two_tracers`.
    """
    named = asked or config.capture.profiler
    if named != "auto":
        refuse_two_tracers(named, config.profiling.enabled and not own_program)


def report_stem(workload: str, nodes: int) -> str:
    """Start of the name of every report of a run: `ranking_2node_profile`."""
    return f"{workload}_{nodes}node_profile"


def nsys_prefix(output: Path, stem: str, *, gpu: bool, ranged: bool) -> list[str]:
    """`nsys profile ...`, to stand before one rank's python.

    Args:
        output: folder of the reports; it must exist, or nsys leaves them in its temporary folder and exits
            with 0.
        stem: start of each report's name; rank, host and process id follow, so that no two ranks share one.
        gpu: the rank has an NVIDIA GPU. Without one there is nothing to trace but NVTX ranges and OS calls.
        ranged: the program calls cudaProfilerStart and cudaProfilerStop around what is to be captured. A
            range that never begins leaves no report, so this is only for programs known to do it.

    `--capture-range-end=stop` keeps the trainer alive after the range (the default ends it),
    `--wait=primary` returns with the trainer even if something it started lives on, and `-s none
    --cpuctxsw=none` keeps sampling out of the measurement.
    """
    traced = "cuda,nvtx" if gpu else "nvtx,osrt"
    argv = ["nsys", "profile", "-t", traced, "-s", "none", "--cpuctxsw=none"]
    if gpu and ranged:
        argv += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return [*argv, "--wait=primary", "-f", "true", "-o", str(output / f"{stem}_rank%q{{RANK}}_%h_%p")]


def rocprof_prefix(output: Path, stem: str) -> list[str]:
    """`rocprofv3 ... --`, to stand before one rank's python.

    The rank comes from torchrun's RANK: rocprofv3's own `%rank%` is Slurm's process number, which under
    torchrun is the node's. The format is named because its default changed with ROCm 7.
    """
    traces = ["kernel", "hip-runtime", "rccl", "marker", "memory-copy"]
    argv = ["rocprofv3", *[f"--{name}-trace" for name in traces], "--stats", "--summary"]
    name = f"{stem}_rank%env{{RANK}}%_%hostname%_%pid%"
    return [*argv, "--output-format", "csv", "-d", str(output), "-o", name, "--"]


def wrap(
    resolved: str, command: Sequence[str], output: Path, stem: str, *, gpu: bool, ranged: bool
) -> list[str]:
    """`command` of one rank inside the profiler `resolved` (as it is for `none`); see `nsys_prefix`."""
    if resolved == "nsys":
        return [*nsys_prefix(output, stem, gpu=gpu, ranged=ranged), *command]
    if resolved == "rocprofv3":
        return [*rocprof_prefix(output, stem), *command]
    return list(command)


def missing_reports(found: Sequence[str], ranks: Sequence[int], stem: str) -> list[int]:
    """Those of `ranks` that have no file among the names `found`."""
    return [rank for rank in ranks if not any(name.startswith(f"{stem}_rank{rank}_") for name in found)]


_HINTS = (
    ("Import Failed", "the profiler could not write it (is the disk full?)"),
    ("No reports were generated", "the profiler was never told to begin"),
    ("Generated:", "the profiler left it in its temporary folder"),
)


def why_no_report(output: Sequence[str]) -> str:
    """The reason for a missing report that a rank's output gives, with the line after it where it names a
    file.
    """
    for words, reason in _HINTS:
        for index, line in enumerate(output):
            if words in line:
                rest = line.partition(words)[2].lstrip(" :").rstrip() or (
                    output[index + 1].strip() if output[index + 1 :] else ""
                )
                return f"{reason}: {rest}" if rest else reason
    return "the profiler wrote none, and the rank's output does not say why"
