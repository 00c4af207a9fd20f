"""Nsight Systems: where it is, which versions are known, and its command line around one rank. Nothing is
executed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from aorta.artefacts import names
from aorta.errors import RunError

OLDEST = (2022, 4)
NEWEST = (2026, 2)
"""First and last version whose exports were read here; others are tried, and that is said."""
"""NVTX range around the captured steps, where there is no CUDA whose profiler calls could mark them."""
_VERSION = re.compile(r"\b(20\d\d)\.(\d+)")
_PLACES = (
    "nsight-systems*/bin/nsys",
    "nsight-systems/*/bin/nsys",
    "nsight-compute*/host/target-linux-*/nsys",
    "nsight-compute/*/host/target-linux-*/nsys",
)
_IMPORTER = "QdstrmImporter"
_IMPORTERS = ("host-linux-*", "linux-desktop-*", "host/linux-desktop-*", "host/host-linux-*")
_OS_CALL_NS = 10_000
METRICS_OPTIONS = ("--gpu-metrics-devices", "--gpu-metrics-device")
"""The option for GPU metrics, as of 2024.5 and before; a version refuses the other's."""


def find(
    environ: Mapping[str, str], which: Callable[[str], str | None], roots: list[Path] | None = None
) -> str | None:
    """The nsys program: AORTA_NSYS, else the one in PATH, else one that came with CUDA or Nsight Compute.

    Args:
        environ: of the job; CUDA_HOME and CUDA_PATH name folders to look into.
        which: finds a program in PATH.
        roots: folders of CUDA and NVIDIA tools. None means the usual ones.

    Raises:
        RunError: AORTA_NSYS names no program.
    """
    named = environ.get(names.NSYS, "")
    if named:
        found = which(named)
        if found is None:
            raise RunError(f"AORTA_NSYS is {named!r}, which is not a program here", "unset it, or name nsys")
        return found
    return which("nsys") or _elsewhere(environ, roots)


def _elsewhere(environ: Mapping[str, str], roots: list[Path] | None) -> str | None:
    folders = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    if roots is None:
        roots = [*sorted(Path("/usr/local").glob("cuda*")), Path("/opt/nvidia")]
    for place in _PLACES:
        found = [path for root in [*folders, *roots] for path in root.glob(place) if path.is_file()]
        if found:
            return str(max(found, key=lambda path: (version(str(path)) or (0, 0), str(path))))
    return None


def importer(program: str, which: Callable[[str], str | None]) -> str | None:
    """The program that turns a `.qdstrm` into a report: beside nsys, else in PATH; None where there is
    none.
    """
    here = Path(program).resolve().parent
    for base in (here, here.parent, here.parent.parent):
        for place in _IMPORTERS:
            found = sorted(base.glob(f"{place}/{_IMPORTER}"))
            if found:
                return str(found[-1])
    return which(_IMPORTER)


def version(text: str) -> tuple[int, int] | None:
    """(2022, 4) of a text such as `NVIDIA Nsight Systems version 2022.4.2.1-df9881f`; None without one."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2])) if match else None


def version_note(text: str | None) -> str | None:
    """A note on the installed version, in words; None if the version is a known one."""
    found = version(text or "")
    if found is None:
        return f"nsys does not print its version ({text!r}); it is used anyway"
    own = f"nsys {found[0]}.{found[1]}"
    if found < OLDEST:
        return (
            f"{own} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest version known to work; it is used "
            "anyway"
        )
    if found > NEWEST:
        return (
            f"{own} is newer than {NEWEST[0]}.{NEWEST[1]}, the newest version with known exports; it is used "
            "anyway"
        )
    return None


def sees_nvtx(program: str | None, package: str | None) -> bool:
    """True if ranges of the Python package `nvtx` reach nsys.

    Ranges of 0.2.12 and later do not reach nsys up to 2023.4 (2022.4 and 2023.4 were tried).

    Args:
        program: what `nsys --version` printed.
        package: version of the package; None where it is not installed.
    """
    if package is None:
        return False
    numbers = tuple(int(part) for part in re.findall(r"\d+", package)[:3])
    return numbers < (0, 2, 12) or (version(program or "") or (0, 0)) > (2023, 4)


def metrics_option(option: str, offered: str, gpus: int) -> tuple[str | None, str]:
    """(option, reason) for GPU metrics: the option is None where they cannot be sampled.

    They are of whole GPUs, so one collector per node samples those of the job.

    Args:
        option: the one of `METRICS_OPTIONS` that this version knows.
        offered: what `nsys profile OPTION=help` printed.
        gpus: of the job on this node.
    """
    complaint = re.search(r".*(?:[Ii]nsufficient privilege|ERR_NVGPUCTRPERM|permission).*", offered)
    if complaint:
        return None, f"not permitted on this machine: {complaint[0].strip()}"
    able = re.findall(r"^\s*(\d+): .*", offered, re.MULTILINE)
    if not able:
        lines = [line.strip() for line in offered.splitlines() if line.strip()]
        return None, f"nsys offers no GPU for them: {lines[0] if lines else 'no answer'}"
    if re.search(r"^\s*cuda-visible:", offered, re.MULTILINE):
        return f"{option}=cuda-visible", "of the GPUs of the job, by local rank 0"
    if len(able) != gpus:
        return (
            None,
            f"the node has {len(able)} GPUs and the job {gpus}: other jobs' GPUs would be sampled too",
        )
    return f"{option}=all", "of all GPUs of the node, by local rank 0"


def prefix(program: str, output: Path, stem: str, *, gpu: bool, ranged: bool) -> list[str]:
    """`nsys profile ...`, to stand before one rank's python.

    Args:
        program: nsys.
        output: folder of the reports; it must exist, or nsys leaves them in its temporary folder and exits
            with 0.
        stem: start of each report's name; rank, host and process id follow, so that no two ranks share one.
        gpu: the rank has an NVIDIA GPU. Without one there is nothing to trace but NVTX ranges and OS calls,
            of the latter those of 10 µs and more.
        ranged: the program marks what is to be captured: by cudaProfilerStart and cudaProfilerStop, without
            a GPU by the NVTX range `names.CAPTURE_RANGE` (whose name must count unregistered:
            NSYS_NVTX_PROFILER_REGISTER_ONLY=0). A range that never begins leaves no report, so this is only
            for programs known to do it.

    `--capture-range-end=stop` keeps the trainer alive after the range (the default ends it),
    `--wait=primary` returns with the trainer even if something it started lives on, and `-s none
    --cpuctxsw=none` keeps sampling out of the measurement. `--cuda-graph-trace=node` records
    the kernels inside CUDA graphs; by default nsys records a graph as one event.
    """
    argv = [program, "profile", "-t", "cuda,nvtx" if gpu else "nvtx,osrt", "-s", "none", "--cpuctxsw=none"]
    argv += ["--cuda-graph-trace=node"] if gpu else []
    argv += [] if gpu else [f"--osrt-threshold={_OS_CALL_NS}"]
    if ranged:
        argv += ["--capture-range=cudaProfilerApi"] if gpu else []
        argv += [] if gpu else ["--capture-range=nvtx", f"--nvtx-capture={names.CAPTURE_RANGE}"]
        argv += ["--capture-range-end=stop"]
    return [*argv, "--wait=primary", "-f", "true", "-o", str(output / f"{stem}_rank%q{{RANK}}_%h_%p")]
