"""The GPU of each process, as nvidia-smi on its node shows it."""

from __future__ import annotations

import csv
import io
import subprocess
from collections.abc import Callable, Mapping, Sequence

from aorta.artefacts.attached import GpuView
from aorta.attach.processes import TorchProcess

_TIMEOUT_S = 10.0
_USES = ("pid", "gpu_uuid")
_FIELDS = (
    *("uuid", "index", "utilization.gpu", "clocks.sm", "clocks.max.sm"),
    *("memory.used", "memory.total"),
)
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The name of the field in newer and in older drivers."""
_SLOWED = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
Query = Callable[[str, Sequence[str]], list[list[str]]]
"""Rows of an nvidia-smi query by its option and fields; none where it fails."""


def gpus_of(processes: Sequence[TorchProcess], query: Query | None = None) -> Mapping[int, GpuView]:
    """The GPU of each process, by process id; processes of which nothing is known are left out.

    Args:
        processes: of this node.
        query: asks the driver. None means nvidia-smi.
    """
    ask = query or nvidia_smi
    gpus = {view.uuid: view for view in _gpus(ask)}
    if not gpus:
        return {}
    uses = {row[0]: row[1] for row in ask("--query-compute-apps", _USES) if len(row) == len(_USES)}
    found = {}
    for process in processes:
        uuid = uses.get(str(process.pid)) or process.environment.get("CUDA_VISIBLE_DEVICES", "")
        if uuid in gpus:  # a list of several devices does not say which one a process uses
            found[process.pid] = gpus[uuid]
    return found


def nvidia_smi(option: str, fields: Sequence[str]) -> list[list[str]]:
    """The rows of one query."""
    command = ["nvidia-smi", f"{option}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    return [[word.strip() for word in row] for row in csv.reader(io.StringIO(done.stdout))]


def _gpus(ask: Query) -> list[GpuView]:
    for reasons in _REASONS:
        rows = ask("--query-gpu", (*_FIELDS, reasons))
        if rows:
            return [_view(row) for row in rows if len(row) == len(_FIELDS) + 1]
    return []


def _view(row: Sequence[str]) -> GpuView:
    index = _number(row[1])
    return GpuView(
        uuid=row[0],
        index=None if index is None else int(index),
        utilization_pct=_number(row[2]),
        sm_clock_mhz=_number(row[3]),
        max_sm_clock_mhz=_number(row[4]),
        memory_used_mib=_number(row[5]),
        memory_total_mib=_number(row[6]),
        slowed_by=_reasons(row[7]),
    )


def _reasons(text: str) -> list[str] | None:
    try:
        bits = int(text, 16)
    except ValueError:
        return None
    return [name for bit, name in _SLOWED.items() if bits & bit]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
