"""torch, GPUs, their samplers and their profilers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aorta.doctor.records import Check
from aorta.launch import nsys
from aorta.launch.tools import ToolAnswer, call
from aorta.monitors.gpu import find_gpus, open_source

TORCH_S = 60.0
"""Importing torch from a slow network file system takes its time."""
PROGRAM_S = 10.0

Runner = Callable[[Sequence[str]], ToolAnswer]
_patient: Runner = partial(call, timeout_s=TORCH_S)
_brief: Runner = partial(call, timeout_s=PROGRAM_S)

_TORCH = """
import json, torch
dist = torch.distributed
found = {
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "distributed": dist.is_available(),
    "gloo": dist.is_available() and dist.is_gloo_available(),
    "nccl": dist.is_available() and dist.is_nccl_available(),
    "gpu": torch.cuda.is_available(), "devices": torch.cuda.device_count(),
}
try:
    found["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version())) if found["nccl"] else None
except Exception:
    found["nccl_version"] = None
print(json.dumps(found))
"""
_SAMPLED = ("utilization_gpu", "memory_used_mb", "power_draw_w", "temperature", "sm_clock_mhz")


def torch(run: Runner = _patient) -> list[Check]:
    """torch, its GPUs and its communication libraries, as a child process of this Python sees them."""
    names = ("torch", "torch devices", "collectives")
    answer = run([sys.executable, "-c", _TORCH])
    if not answer.ok:
        absent = "No module named 'torch'" in answer.err
        text = "not installed" if absent else f"cannot be imported: {answer.complaint[-300:]}"
        hint = "run make setup, or AORTA_SYSTEM_TORCH=1 make setup for your site's torch"
        # What is asked of it cannot be answered either.
        return [Check(names[0], "missing", text, hint), *(Check(n, "missing", "no torch") for n in names[1:])]
    found: dict[str, Any] = json.loads(answer.out.strip().splitlines()[-1])
    backend = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else "CPU"
    version = Check("torch", "ok", f"{found['version']}, built for {backend}", value=found)
    return [version, _torch_devices(found), _collectives(found)]


def _torch_devices(found: Mapping[str, Any]) -> Check:
    name, value = "torch devices", {"devices": found["devices"]}
    if found["gpu"]:
        return Check(name, "ok", f"{found['devices']} GPUs", value=value)
    if found["cuda"] or found["hip"]:
        hint = (
            "on a GPU node, check nvidia-smi or rocm-smi, and CUDA_VISIBLE_DEVICES; a login node normally "
            "has no GPU"
        )
        return Check(name, "note", "built for GPUs, but sees none: training runs on the CPU", hint, value)
    return Check(name, "note", "a CPU-only build: training runs on the CPU", value=value)


def _collectives(found: Mapping[str, Any]) -> Check:
    name = "collectives"
    value = {key: found[key] for key in ("gloo", "nccl", "nccl_version")}
    version = f"nccl {found['nccl_version'] or 'of unknown version'}"
    there = [text for key, text in (("nccl", version), ("gloo", "gloo")) if found[key]]
    if not there:
        return Check(
            name,
            "missing",
            "this torch has neither gloo nor nccl",
            "install an official build of torch",
            value,
        )
    if found["gpu"] and not found["nccl"]:
        hint = "install a build of torch that has nccl (rccl on AMD): GPU ranks need it"
        return Check(name, "note", f"{', '.join(there)}; no nccl", hint, value)
    return Check(name, "ok", ", ".join(there), value=value)


def gpus(environment: Mapping[str, str]) -> list[Check]:
    """The GPUs that a rank would see here, and whether they can be sampled."""
    found = find_gpus(environment)
    if not found.visible:
        text = "no NVIDIA or AMD GPU, or no driver"
        hint = "check that nvidia-smi or rocm-smi lists the GPUs, if you expect GPUs here"
        return [
            Check("gpus", "missing", text, hint, {"count": 0}),
            Check("gpu sampling", "missing", "nothing to sample", value={"source": None}),
        ]
    models: dict[str, int] = {}
    for gpu in found.visible:
        models[gpu.name] = models.get(gpu.name, 0) + 1
    text = ", ".join(f"{count} x {model}" for model, count in models.items()) + f" by {found.source}"
    value = {"count": len(found.visible), "vendor": found.vendor, "models": models}
    return [Check("gpus", "ok", text, value=value), _sampling(environment)]


def _sampling(environment: Mapping[str, str]) -> Check:
    """Opens the best source, takes one sample, and says what it leaves empty."""
    name = "gpu sampling"
    source, reasons = open_source([], environment)
    if source is None:
        return Check(
            name,
            "missing",
            reasons or "no source",
            "ignore this if you need no GPU columns: monitoring works without them",
        )
    try:
        readings = source.sample()
        empty = [
            column
            for column in _SAMPLED
            if readings and all(getattr(reading.sample, column) is None for reading in readings)
        ]
        value = {"source": source.name, "empty": empty}
        text = f"by {source.name}" + (f"; better sources are not used: {reasons}" if reasons else "")
        if empty:
            hint = "expect `not measured` for these values: the driver does not report them (MIG, vGPU)"
            return Check(name, "note", f"{text}; not measured: {', '.join(empty)}", hint, value)
        return Check(name, "ok", text, value=value)
    finally:
        source.close()


def profilers(run: Runner = _brief) -> list[Check]:
    """nsys and rocprofv3."""
    hint = "install Nsight Systems or load its module; step records and monitors work without it"
    rocm = "install rocprofiler-sdk (ROCm 6.2 or newer) or load its module"
    found = _profiler("nsys", nsys.find(os.environ, shutil.which), run, hint)
    return [_known(found), _profiler("rocprofv3", shutil.which("rocprofv3"), run, rocm)]


def _known(found: Check) -> Check:
    """An nsys of a version that was not tried is noted."""
    version = nsys.version(found.text) if found.state == "ok" else None
    if version is None or nsys.OLDEST <= version <= nsys.NEWEST:
        return found
    known = " to ".join(f"{year}.{number}" for year, number in (nsys.OLDEST, nsys.NEWEST))
    return replace(
        found, state="note", hint=f"check the first reports carefully: aorta was tested with nsys {known}"
    )


def _profiler(name: str, path: str | None, run: Runner, hint: str) -> Check:
    if path is None:
        return Check(name, "missing", "not found", hint)
    answer = run([path, "--version"])
    if not answer.ok:
        return Check(name, "missing", f"{path} does not run: {answer.complaint}", hint, {"path": path})
    line = next((line.strip() for line in answer.out.splitlines() if line.strip()), "of unknown version")
    return Check(name, "ok", f"{line} ({path})", value={"path": path, "version": line})


def permissions(proc: Path = Path("/proc")) -> list[Check]:
    """Checks what the kernel and the NVIDIA driver allow a profiler of this user."""
    return [_sampling_permission(proc), _metrics_permission(proc)]


def _sampling_permission(proc: Path) -> Check:
    name = "cpu sampling permission"
    try:
        level = int((proc / "sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return Check(
            name,
            "note",
            "perf_event_paranoid cannot be read",
            "ignore this for aorta: its captures do not sample CPUs",
        )
    value = {"perf_event_paranoid": level}
    if level > 2 and os.geteuid() != 0:
        hint = "set kernel.perf_event_paranoid to 2 or less for your own captures; aorta's do not need it"
        return Check(name, "note", f"perf_event_paranoid is {level}: nsys cannot sample CPUs", hint, value)
    return Check(name, "ok", f"perf_event_paranoid is {level}", value=value)


def _metrics_permission(proc: Path) -> Check:
    name = "gpu metrics permission"
    try:
        text = (proc / "driver/nvidia/params").read_text()
    except OSError:
        return Check(name, "note", "no NVIDIA driver", value={})
    restricted = "RmProfilingAdminOnly: 1" in text
    value = {"admin_only": restricted}
    if restricted and os.geteuid() != 0:
        hint = "ask the administrator to load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        return Check(
            name, "note", "only administrators may record GPU metrics with nsys on this machine", hint, value
        )
    return Check(name, "ok", "nsys may read GPU metrics", value=value)
