"""The GPUs of a node, and the best source of samples of them, with the reason why better ones are not
used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aorta.artefacts.records import GpuInfo
from aorta.errors import RunError
from aorta.monitors import tools
from aorta.monitors.devices import Device, Source, SourceError, Vendor, visible
from aorta.monitors.vendor_amdsmi import amdsmi_library
from aorta.monitors.vendor_library import Library, LibrarySource, nvml_library

Opener = Callable[[Sequence[str], Mapping[str, str]], Source]


def load_nvml() -> Library:
    """NVML by nvidia-ml-py.

    Raises:
        SourceError: the module is not there.
    """
    try:
        return nvml_library(importlib.import_module("pynvml"))
    except (ImportError, OSError) as error:
        raise SourceError(f"nvml: {error}") from error


def load_amdsmi() -> Library:
    """The amdsmi module that ROCm installs.

    Raises:
        SourceError: it is not there.
    """
    try:
        return amdsmi_library(importlib.import_module("amdsmi"))
    except (ImportError, OSError, KeyError) as error:  # KeyError: it looks for ROCM_PATH without asking
        raise SourceError(f"amdsmi: {error}") from error


def open_nvml(wanted: Sequence[str], environment: Mapping[str, str]) -> Source:
    """Samples by NVML.

    Raises:
        SourceError: as `LibrarySource.open`.
    """
    return LibrarySource(load_nvml(), wanted, environment).open()


def open_amdsmi(wanted: Sequence[str], environment: Mapping[str, str]) -> Source:
    """Samples by amdsmi.

    Raises:
        SourceError: as `LibrarySource.open`.
    """
    return LibrarySource(load_amdsmi(), wanted, environment).open()


ORDER: tuple[Opener, ...] = (
    open_nvml,
    tools.open_nvidia_smi,
    open_amdsmi,
    tools.open_amd_smi,
    tools.open_rocm_smi,
)


def open_source(
    wanted: Sequence[str], environment: Mapping[str, str], order: Sequence[Opener] = ORDER
) -> tuple[Source | None, str | None]:
    """The first source of `order` that has the job's GPUs, and why those before it (or all) have not."""
    reasons: list[str] = []
    for opener in order:
        try:
            return opener(wanted, environment), "; ".join(reasons) or None
        except SourceError as error:
            reasons.append(str(error))
    return None, "; ".join(reasons)


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that a process of this node sees, in its order: whose they are, and by which source."""

    vendor: Vendor | None
    visible: list[GpuInfo]
    source: str


Lister = tuple[str, Vendor, Callable[[], list[Device]]]
LISTERS: tuple[Lister, ...] = (
    ("nvml", "nvidia", lambda: load_nvml().list_devices()),
    ("nvidia-smi", "nvidia", tools.list_nvidia_smi),
    ("amdsmi", "amd", lambda: load_amdsmi().list_devices()),
    ("amd-smi", "amd", tools.list_amd_smi),
    ("rocm-smi", "amd", tools.list_rocm_smi),
)


def find_gpus(environment: Mapping[str, str], listers: Sequence[Lister] = LISTERS) -> Gpus:
    """The GPUs that a rank will see, by the first lister that has any; none without a driver.

    Ranks count by PCI address unless `environment` says otherwise: the agent tells them to. A divided GPU
    that is seen as a whole stands for its first instance, as in CUDA.

    Raises:
        RunError: a mask cannot be read without guessing.
    """
    for source, vendor, devices_of in listers:
        try:
            devices = devices_of()
        except SourceError:
            continue
        if not devices:
            continue
        try:
            seen = visible(devices, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environment}, vendor).devices
        except SourceError as error:
            raise RunError(str(error), "set CUDA_DEVICE_ORDER=PCI_BUS_ID") from error
        used = [device.parts[0] if device.parts else device for device in seen]
        return Gpus(vendor, [_info(index, device) for index, device in enumerate(used)], source)
    return Gpus(None, [], "none")


def _info(index: int, device: Device) -> GpuInfo:
    return GpuInfo(
        index=index,
        uuid=device.identifier,
        name=device.name or "GPU",
        memory_total_bytes=device.memory_total_bytes,
    )
