"""The external profiler of this node: found, asked what it can, and put around each rank."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aorta.artefacts import names
from aorta.artefacts.records import ProfilerChoice
from aorta.config.schema import CaptureConfig
from aorta.launch import nsys, rocprof_capture
from aorta.launch.profilers import resolve
from aorta.monitors.gpu import Gpus

_PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Words and variables before one rank's program."""

    prefix: list[str] = field(default_factory=list)
    """Words before the program. Empty if there is no profiler."""
    first: list[str] = field(default_factory=list)
    """Options for local rank 0 only."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that it needs."""
    notes: list[str] = field(default_factory=list)
    ranged: bool = False
    """A rank tells the profiler which steps to record."""

    def around(self, command: list[str], python: str | None = None) -> list[str]:
        """Returns `command` of one rank inside the profiler.

        Args:
            command: of one rank.
            python: an interpreter without aorta, such as that of a container. None means that of the agent.
        """
        if not self.first:
            return [*self.prefix, *command]
        start = [python or sys.executable, str(Path(__file__).with_name("first_rank.py"))]
        return [*start, str(len(self.first)), *self.first, *self.prefix, *command]


def choose(requested: str, gpus: Gpus, environ: Mapping[str, str]) -> ProfilerChoice:
    """The profiler of this node, with its program; see `profilers.resolve`.

    Raises:
        ConfigError, RunError: as `profilers.resolve`, and as `nsys.find`.
    """
    return resolve(
        requested,
        gpus.vendor,
        lambda name: nsys.find(environ, shutil.which) if name == "nsys" else shutil.which(name),
    )


def wrapper(
    choice: ProfilerChoice,
    capture: CaptureConfig,
    gpus: Gpus,
    *,
    environ: Mapping[str, str],
    output: Path,
    stem: str,
    whole: bool,
) -> Wrapper:
    """The wrapper of each rank, and notes about it.

    Args:
        choice: with its version.
        capture: the configuration.
        gpus: of this node.
        environ: of the agent; ROCPROF_ARGS are options for rocprofv3.
        output: folder of the reports.
        stem: start of their names.
        whole: nothing in the program marks a capture range, so that its whole run is recorded.

    Raises:
        ConfigError: options for rocprofv3 that it does not know.
    """
    if choice.resolved == "nsys":
        return _nsys(choice, capture, gpus, output, stem, whole=whole)
    if choice.resolved == "rocprofv3":
        known = rocprof_capture.known_options()
        text = environ.get("ROCPROF_ARGS", "")
        prefix, notes = rocprof_capture.rocprof_prefix(output, stem, text, known, ranged=not whole)
        ranged = rocprof_capture.REGIONS in prefix and not whole
        variables = {names.REGIONS: "1"} if ranged else {}
        return Wrapper(prefix=prefix, notes=notes, environment=variables, ranged=ranged)
    return Wrapper()


def _nsys(
    choice: ProfilerChoice, capture: CaptureConfig, gpus: Gpus, output: Path, stem: str, *, whole: bool
) -> Wrapper:
    program = choice.program or "nsys"
    note = nsys.version_note(choice.version)
    notes = [note] if note else []
    if shutil.which("nsys") is None:
        notes.append(f"nsys is not in PATH, so {program} is used")
    gpu = gpus.vendor == "nvidia"
    ranged = not whole
    if ranged and not gpu and not nsys.sees_nvtx(choice.version, _installed("nvtx")):
        ranged = False
        notes.append(
            "no NVTX ranges, and the whole run is in the report: without a GPU, ranges need the Python "
            "package nvtx in a version that this nsys supports (below 0.2.12 up to nsys 2023.4)"
        )
    first = []
    if capture.gpu_metrics:
        option, reason = nsys.metrics_option(*_offered_metrics(program), len(gpus.visible))
        first = [option] if option else []
        notes.append(f"GPU metrics {'sampled' if option else 'left out'}: {reason}")
    return Wrapper(
        prefix=nsys.prefix(program, output, stem, gpu=gpu, ranged=ranged),
        first=first,
        environment={"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
        notes=notes,
        ranged=ranged,
    )


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _offered_metrics(program: str) -> tuple[str, str]:
    """The option for GPU metrics and what nsys says about it; its complaint where it cannot be asked."""
    said = ""
    for option in nsys.METRICS_OPTIONS:
        try:
            done = subprocess.run(
                [program, "profile", f"{option}=help"],
                capture_output=True, text=True, errors="replace", timeout=_PROBE_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return option, str(error)
        said = done.stdout + done.stderr
        if "unrecogni" not in said:
            return option, said
    return option, said
