"""External profilers: which one runs and why. Pure: nothing is executed here. Command lines: `nsys`,
`rocprof_capture`.
"""

from __future__ import annotations

from collections.abc import Callable

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
        which: finds a profiler's program; None where it is not installed.

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
    program = which(requested)
    if program is None:
        raise RunError(
            f"profiler {requested} was requested, but is not installed on this machine", _INSTALL[requested]
        )
    return ProfilerChoice(
        requested=requested, resolved=requested, reason="requested by name", program=program
    )


def _automatic(vendor: Vendor | None, which: Which) -> ProfilerChoice:
    if vendor is None:
        return ProfilerChoice(requested="auto", resolved="none", reason="the job has no GPU on this node")
    tool = _TOOL[vendor]
    name = {"nvidia": "NVIDIA", "amd": "AMD"}[vendor]
    program = which(tool)
    if program is None:
        reason = f"{name} GPUs, but {tool} is not installed on this machine"
        return ProfilerChoice(requested="auto", resolved="none", reason=reason)
    reason = f"{name} GPUs, and {tool} is installed"
    return ProfilerChoice(requested="auto", resolved=tool, reason=reason, program=program)


def refuse_two_tracers(resolved: str, torch_profiler: bool) -> None:
    """Refuse torch.profiler inside an external profiler: two tracers cannot have the GPU of one process.

    Raises:
        ConfigError: `torch_profiler` is on while `resolved` is a profiler.
    """
    if torch_profiler and resolved != "none":
        raise ConfigError(
            f"profiling.enabled is true while the job runs under {resolved}: two profilers cannot trace one "
            "process's GPU",
            "use --profiler none with torch.profiler, or profiling.enabled=false",
        )


def refuse_named_tracer(asked: str | None, config: Config, *, own_program: bool) -> None:
    """`refuse_two_tracers` before anything is submitted, where the profiler is named (not `auto`).

    Args:
        asked: of `NAMES`, on the command line. None means the configuration's.
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
