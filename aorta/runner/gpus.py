"""The GPUs that this node's ranks will see, in the order in which they will see them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aorta.artefacts.records import GpuInfo
from aorta.launch.profilers import Vendor
from aorta.units import BYTES_PER_MIB

Run = Callable[[Sequence[str]], str | None]
_QUERY_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Device:
    """A physical GPU; `parts` are the UUIDs of its MIG instances, in order, where it is divided."""

    uuid: str
    name: str
    memory_total_bytes: int | None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpus:
    """What was found: the job's GPUs on this node, whose they are, and by which tool."""

    vendor: Vendor | None
    visible: list[GpuInfo]
    source: str


def find_gpus(environ: Mapping[str, str]) -> Gpus:
    """NVIDIA GPUs by NVML or nvidia-smi, else AMD GPUs by amd-smi or rocm-smi, else none; masks of
    `environ` applied.
    """
    devices = _by_nvml()
    if devices:
        return Gpus("nvidia", select(devices, environ.get("CUDA_VISIBLE_DEVICES")), "nvml")
    for vendor, source, read in _TOOLS:
        devices = read(_run)
        if devices and vendor == "nvidia":
            return Gpus(vendor, select(devices, environ.get("CUDA_VISIBLE_DEVICES")), source)
        if devices:
            # ROCr masks first; HIP's own mask then counts within what ROCr left. HIP also honours CUDA's
            # name for it.
            left = select(devices, environ.get("ROCR_VISIBLE_DEVICES"))
            mask = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
            rest = [Device(gpu.uuid, gpu.name, gpu.memory_total_bytes) for gpu in left]
            return Gpus(vendor, select(rest, mask), source)
    return Gpus(None, [], "none")


def select(devices: Sequence[Device], mask: str | None) -> list[GpuInfo]:
    """The devices that a mask such as CUDA_VISIBLE_DEVICES leaves, renumbered from 0 as torch does.

    Entries are indices, UUIDs (or their unambiguous beginnings) and MIG UUIDs. As in the CUDA runtime, the
    first entry that names no device ends the list. A divided GPU named as a whole stands for its first
    instance.
    """
    if mask is None:
        chosen = [(device, device.parts[0] if device.parts else device.uuid) for device in devices]
    else:
        chosen = []
        for entry in mask.split(","):
            match = _find(devices, entry.strip())
            if match is None:
                break
            chosen.append(match)
    return [
        GpuInfo(
            index=index,
            uuid=uuid,
            name=device.name,
            memory_total_bytes=device.memory_total_bytes if uuid == device.uuid else None,
        )
        for index, (device, uuid) in enumerate(chosen)
    ]


def _find(devices: Sequence[Device], entry: str) -> tuple[Device, str] | None:
    if not entry:
        return None
    if entry.isdigit():
        if int(entry) >= len(devices):
            return None
        device = devices[int(entry)]
        return device, (device.parts[0] if device.parts else device.uuid)
    parts = [(device, part) for device in devices for part in device.parts if part == entry]
    if parts:
        return parts[0]
    whole = [device for device in devices if device.uuid.lower().startswith(entry.lower())]
    if len(whole) != 1:
        return None
    return whole[0], (whole[0].parts[0] if whole[0].parts else whole[0].uuid)


def _run(argv: Sequence[str]) -> str | None:
    """Standard output of a vendor's tool; None where it is absent, fails or hangs."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _by_nvml() -> list[Device]:
    try:
        import pynvml
    except ImportError:
        return []
    return read_nvml(pynvml)


def read_nvml(nvml: Any) -> list[Device]:
    """Physical GPUs in PCI order through a module like `pynvml`; empty where the driver is not there."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [_nvml_device(nvml, handle) for handle in handles]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _nvml_device(nvml: Any, handle: Any) -> Device:
    try:
        total: int | None = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None
    parts = []
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                try:
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                except nvml.NVMLError:
                    continue  # slots without an instance
                parts.append(_text(nvml.nvmlDeviceGetUUID(part)))
    except nvml.NVMLError:
        parts = []  # this GPU cannot be divided
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Device(_text(uuid), _text(name), total, tuple(parts))


def ask_nvidia_smi(run: Run) -> list[Device]:
    """GPUs by `nvidia-smi`, for nodes where its library cannot be loaded."""
    fields = "--query-gpu=uuid,name,memory.total"
    listing = run(["nvidia-smi", fields, "--format=csv,noheader,nounits"])
    return parse_nvidia_smi(listing or "", run(["nvidia-smi", "-L"]) or "" if listing else "")


def parse_nvidia_smi(query: str, listing: str) -> list[Device]:
    """GPUs from `--query-gpu=uuid,name,memory.total --format=csv,noheader,nounits` and `-L` (which has the
    MIG UUIDs).
    """
    parts: dict[str, list[str]] = {}
    parent = ""
    for line in listing.splitlines():
        uuid = line.rpartition("(UUID: ")[2].rstrip(") ")
        if line.startswith("GPU "):
            parent = uuid
        elif line.strip().startswith("MIG "):
            parts.setdefault(parent, []).append(uuid)
    devices = []
    for line in query.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not cells[0].startswith("GPU-"):
            continue
        total = int(cells[2]) * BYTES_PER_MIB if cells[2].isdigit() else None
        devices.append(Device(cells[0], cells[1], total, tuple(parts.get(cells[0], ()))))
    return devices


def ask_amd_smi(run: Run) -> list[Device]:
    """GPUs from `amd-smi list --json` and `amd-smi static --asic --vram --json`, joined on the index."""
    listed = _json_rows(run(["amd-smi", "list", "--json"]))
    if not listed:
        return []
    details = _json_rows(run(["amd-smi", "static", "--asic", "--vram", "--json"]))
    static = {row.get("gpu"): row for row in details}
    devices = []
    for row in listed:
        more = static.get(row.get("gpu"), {})
        asic, vram = more.get("asic") or {}, more.get("vram") or {}
        size = vram.get("size") if isinstance(vram, dict) else None
        in_mib = isinstance(size, dict) and isinstance(size.get("value"), int) and size.get("unit") == "MB"
        total = size["value"] * BYTES_PER_MIB if isinstance(size, dict) and in_mib else None
        name = str(asic.get("market_name", "AMD GPU")) if isinstance(asic, dict) else "AMD GPU"
        devices.append(Device(str(row.get("uuid") or row.get("bdf")), name, total))
    return devices


def _json_rows(text: str | None) -> list[dict[str, Any]]:
    try:
        tree = json.loads(text or "[]")
    except ValueError:
        return []
    if isinstance(tree, dict):
        tree = tree.get("gpu_data", [])
    return [row for row in tree if isinstance(row, dict)] if isinstance(tree, list) else []


def ask_rocm_smi(run: Run) -> list[Device]:
    """GPUs from `rocm-smi --showuniqueid --showproductname --showmeminfo vram --json`, in card order."""
    text = run(["rocm-smi", "--showuniqueid", "--showproductname", "--showmeminfo", "vram", "--json"])
    try:
        tree = json.loads(text or "{}")
    except ValueError:
        return []
    cards = [(key, row) for key, row in tree.items() if key.startswith("card") and key[4:].isdigit()]
    devices = []
    for key, row in sorted(cards, key=lambda item: int(item[0][4:])):
        # The capital of "series" and the prefix of the id differ between releases.
        lower = {name.lower(): value for name, value in row.items()}
        unique = str(lower.get("unique id", "")).removeprefix("0x")
        total = str(lower.get("vram total memory (b)", ""))
        devices.append(
            Device(
                uuid=f"GPU-{unique}" if unique and unique != "N/A" else key,
                name=str(lower.get("card series", "AMD GPU")),
                memory_total_bytes=int(total) if total.isdigit() else None,
            )
        )
    return devices


_TOOLS: tuple[tuple[Vendor, str, Callable[[Run], list[Device]]], ...] = (
    ("nvidia", "nvidia-smi", ask_nvidia_smi),
    ("amd", "amd-smi", ask_amd_smi),
    ("amd", "rocm-smi", ask_rocm_smi),
)
