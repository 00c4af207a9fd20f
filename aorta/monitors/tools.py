"""GPU samples through a vendor's program: nvidia-smi, amd-smi or rocm-smi, where its library cannot be
loaded.

At most one call is in flight, it is never waited for, and one that hangs is killed. A call costs far more
than a sample of the library, so the next one starts late enough that calls take at most `DUTY` of one core;
samples are then rarer than the interval, never stale.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aorta.artefacts.samples import GpuSample, parse_amd_smi_json, parse_nvidia_smi_csv, parse_rocm_smi_json
from aorta.errors import ArtefactError
from aorta.monitors.devices import Device, Reading, SourceError, choose, same_id
from aorta.units import BYTES_PER_MIB, NS_PER_S

DUTY = 0.05
TIMEOUT_S = 10.0
MOST_FAILURES = 5
_ANSWERED = re.compile(r"^(?:\d+, )?GPU(?:-[0-9a-f]{8}-| \d+: ).*", re.MULTILINE)
"""A row or a line of nvidia-smi about one GPU."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call: its output, or the reason why there is none."""

    text: str
    failure: str | None


class ToolCall:
    """A program that runs aside, its output in an unnamed file so that it can never block on us.

    Raises:
        SourceError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        self.argv = list(argv)
        self.started_wall_ns, self.started_ns = time.time_ns(), time.monotonic_ns()
        self._deadline_ns = self.started_ns + round(timeout_s * NS_PER_S)
        self._timeout_s = timeout_s
        try:
            self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
            self._child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{self.argv[0]}: {error.strerror}") from error

    def outcome(self) -> ToolResult | None:
        """The result, or None while it runs; a call past its time is killed and reported as such."""
        code = self._child.poll()
        if code is None:
            if time.monotonic_ns() < self._deadline_ns:
                return None
            self.kill()
            return ToolResult("", f"{self.argv[0]} gave no answer within {self._timeout_s:g} s")
        texts = []
        for stream in (self._out, self._err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
            stream.close()
        if code == 0:
            return ToolResult(texts[0], None)
        said = next(
            (line.strip() for text in reversed(texts) for line in text.splitlines() if line.strip()),
            "no message",
        )
        return ToolResult(texts[0], f"{self.argv[0]} exited {code}: {said}")

    def kill(self) -> None:
        """End it and its children. One stuck in the driver cannot be ended and is not waited for."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)
        self._out.close()
        self._err.close()

    def wait(self) -> str:
        """The output, once it has ended.

        Raises:
            SourceError: it failed or hung.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(self._timeout_s)
        outcome = self.outcome()
        while outcome is None:
            time.sleep(0.01)
            outcome = self.outcome()
        if outcome.failure is not None and not _ANSWERED.search(outcome.text):
            raise SourceError(outcome.failure)
        return outcome.text


@dataclass(slots=True)
class ToolSource:
    """Calls `argv` again and again; `gpus` are the job's GPUs in its order."""

    name: str
    argv: list[str]
    parse: Callable[[str], list[GpuSample]]
    gpus: list[Device]
    timeout_s: float = TIMEOUT_S
    errors: dict[str, int] = field(default_factory=dict)
    _call: ToolCall | None = None
    _next_ns: int = 0
    _failures: int = 0
    _cost_before_s: float = 0.0

    def sample(self) -> list[Reading]:
        """The readings of a call that has ended since; none while it runs; empty ones when it failed."""
        readings = self._collect()
        if self._call is None and self._failures < MOST_FAILURES and time.monotonic_ns() >= self._next_ns:
            self._cost_before_s = _children_cpu_s()
            try:
                self._call = ToolCall(self.argv, self.timeout_s)
            except SourceError as error:
                return self._failed(str(error))
        return self._empty() if self._failures >= MOST_FAILURES else readings

    def close(self) -> None:
        """End the call in flight."""
        if self._call is not None:
            self._call.kill()
            self._call = None

    def _collect(self) -> list[Reading]:
        outcome = self._call.outcome() if self._call is not None else None
        if self._call is None or outcome is None:
            return []
        call, self._call = self._call, None
        self._next_ns = call.started_ns + round((_children_cpu_s() - self._cost_before_s) / DUTY * NS_PER_S)
        if outcome.failure is not None:
            if not _ANSWERED.search(outcome.text):
                return self._failed(outcome.failure)
            self.errors[outcome.failure] = self.errors.get(outcome.failure, 0) + 1
        try:
            samples = self.parse(outcome.text)
        except ArtefactError as error:
            return self._failed(error.message)
        self._failures = 0
        return [
            Reading(i, self._of(device, samples), call.started_wall_ns, call.started_ns)
            for i, device in enumerate(self.gpus)
        ]

    def _failed(self, reason: str) -> list[Reading]:
        self._failures += 1
        if self._failures == MOST_FAILURES:
            reason += f" ({MOST_FAILURES} times in a row; no further attempts)"
        self.errors[reason] = self.errors.get(reason, 0) + 1
        return self._empty()

    def _empty(self) -> list[Reading]:
        wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        return [
            Reading(i, GpuSample(index=device.index, uuid=device.uuid, name=device.name), wall_ns, mono_ns)
            for i, device in enumerate(self.gpus)
        ]

    def _of(self, device: Device, samples: Sequence[GpuSample]) -> GpuSample:
        """The sample of `device`, by identifier where the tool prints one, else by its index."""
        for sample in samples:
            same = (
                same_id(sample.uuid) == same_id(device.uuid)
                if sample.uuid is not None and device.uuid is not None
                else sample.index == device.index
            )
            if same:
                return replace(sample, uuid=device.uuid, name=device.name)
        reason = f"{self.name} has no sample of GPU {device.uuid or device.index}"
        self.errors[reason] = self.errors.get(reason, 0) + 1
        return GpuSample(index=device.index, uuid=device.uuid, name=device.name)


def _children_cpu_s() -> float:
    """CPU time of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


_NVIDIA_QUERY = (
    "index,uuid,name,utilization.gpu,utilization.memory,memory.used,memory.total,temperature.gpu,power.draw,"
    "clocks.sm"
)


def list_nvidia_smi(timeout_s: float = TIMEOUT_S) -> list[Device]:
    """Every GPU of the node by nvidia-smi, those that are divided with their instances.

    Raises:
        SourceError: not installed, or no driver.
    """
    program = _program("nvidia-smi")
    query = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv"]
    devices = _devices(_samples(_nvidia_samples, ToolCall(query, timeout_s).wait()))
    parts: dict[str | None, list[tuple[str, str]]] = {}
    with contextlib.suppress(SourceError):  # only a divided GPU needs it
        parts = nvidia_instances(ToolCall([program, "-L"], timeout_s).wait())
    return [
        replace(
            device,
            parts=tuple(Device(device.index, uuid, name) for uuid, name in parts.get(device.uuid, ())),
        )
        for device in devices
    ]


def nvidia_instances(listing: str) -> dict[str | None, list[tuple[str, str]]]:
    """UUID and name of the MIG instances of each GPU (by UUID), of the text of `nvidia-smi -L`."""
    found: dict[str | None, list[tuple[str, str]]] = {}
    parent = None
    for line in listing.splitlines():
        before, _, uuid = line.strip().rstrip(")").rpartition(" (UUID: ")
        if line.startswith("GPU "):
            parent = uuid
        elif before.startswith("MIG "):
            found.setdefault(parent, []).append((uuid, before.rpartition(" Device")[0].strip()))
    return found


def open_nvidia_smi(
    wanted: Sequence[str], environment: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> ToolSource:
    """nvidia-smi, asked for the job's GPUs only.

    Raises:
        SourceError: not installed, no driver, not the job's GPUs, or a MIG instance, which it does not
            sample.
    """
    gpus = choose(list_nvidia_smi(timeout_s), wanted, environment, "nvidia")
    instances = [gpu.identifier for gpu in gpus if gpu.identifier.startswith("MIG-")]
    if instances:
        raise SourceError(f"nvidia-smi does not sample MIG instances ({', '.join(instances)})")
    only = "--id=" + ",".join(gpu.uuid or str(gpu.index) for gpu in gpus)
    reasons = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # renamed in driver 535
    for columns in (*(f"{_NVIDIA_QUERY},{reason}" for reason in reasons), _NVIDIA_QUERY):
        argv = [_program("nvidia-smi"), f"--query-gpu={columns}", "--format=csv", only]
        with contextlib.suppress(SourceError):
            ToolCall(argv, timeout_s).wait()
            return ToolSource("nvidia-smi", argv, _nvidia_samples, gpus, timeout_s)
    raise SourceError(f"nvidia-smi refuses the query {_NVIDIA_QUERY}")


def _nvidia_samples(text: str) -> list[GpuSample]:
    return parse_nvidia_smi_csv(text).samples


def list_amd_smi(timeout_s: float = TIMEOUT_S) -> list[Device]:
    """Every GPU of the node by amd-smi: identity from `list`, the rest from `static`.

    Raises:
        SourceError: not installed, or no driver.
    """
    program = _program("amd-smi")
    devices = _devices(_samples(parse_amd_smi_json, ToolCall([program, "list", "--json"], timeout_s).wait()))
    with contextlib.suppress(SourceError):  # name and memory are niceties
        static = ToolCall([program, "static", "--asic", "--vram", "--json"], timeout_s).wait()
        more = {device.index: device for device in _devices(_samples(parse_amd_smi_json, static))}
        return [
            replace(device, name=said.name, memory_total_bytes=said.memory_total_bytes)
            if (said := more.get(device.index)) is not None
            else device
            for device in devices
        ]
    return devices


def open_amd_smi(
    wanted: Sequence[str], environment: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> ToolSource:
    """amd-smi: samples from `metric`.

    Raises:
        SourceError: not installed, no driver, or not the job's GPUs.
    """
    gpus = choose(list_amd_smi(timeout_s), wanted, environment, "amd")
    argv = [_program("amd-smi"), "metric", "--json"]
    return ToolSource("amd-smi", argv, parse_amd_smi_json, gpus, timeout_s)


def list_rocm_smi(timeout_s: float = TIMEOUT_S) -> list[Device]:
    """Every GPU of the node by rocm-smi, in card order.

    Raises:
        SourceError: not installed, or no driver.
    """
    return _devices(_samples(parse_rocm_smi_json, ToolCall(_rocm_argv(), timeout_s).wait()))


def open_rocm_smi(
    wanted: Sequence[str], environment: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> ToolSource:
    """rocm-smi, which ROCm replaced by amd-smi.

    Raises:
        SourceError: not installed, no driver, or not the job's GPUs.
    """
    gpus = choose(list_rocm_smi(timeout_s), wanted, environment, "amd")
    return ToolSource("rocm-smi", _rocm_argv(), parse_rocm_smi_json, gpus, timeout_s)


def _rocm_argv() -> list[str]:
    show = "uniqueid productname use memuse temp power clocks energycounter".split()
    return [_program("rocm-smi"), *(f"--show{what}" for what in show), "--showmeminfo", "vram", "--json"]


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SourceError(f"{name} is not on PATH")
    return path


def _samples(parse: Callable[[str], list[GpuSample]], text: str) -> list[GpuSample]:
    try:
        return parse(text)
    except ArtefactError as error:
        raise SourceError(error.message) from error


def _devices(samples: Sequence[GpuSample]) -> list[Device]:
    """The GPUs of a listing in the order of their numbers, which is that of the vendors' masks."""
    indexed = [(i if sample.index is None else sample.index, sample) for i, sample in enumerate(samples)]
    return [
        Device(
            index,
            sample.uuid,
            sample.name,
            (f"card{index}",),
            memory_total_bytes=round(sample.memory_total_mb * BYTES_PER_MIB)
            if sample.memory_total_mb is not None
            else None,
        )
        for index, sample in sorted(indexed, key=lambda item: item[0])
    ]
