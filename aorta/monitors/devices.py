"""Finds the job's GPUs among a node's, and their order. Pure: no driver is asked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from aorta.artefacts.samples import GpuSample

Vendor = Literal["nvidia", "amd"]


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or one MIG instance of a GPU, as a source lists it."""

    index: int
    """The source's number of the GPU; sources list in this order."""
    uuid: str | None
    name: str | None
    aliases: tuple[str, ...] = ()
    """Other identifiers of the same GPU."""
    memory_total_bytes: int | None = None
    parts: tuple[Device, ...] = ()
    """MIG instances, in order, where it is divided."""

    @property
    def identifier(self) -> str:
        """The name that finds it again: its UUID, else another one."""
        return self.uuid or next(iter(self.aliases), str(self.index))


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample of the job's GPU `gpu_id` (its index within the job), with the instant it was taken."""

    gpu_id: int
    sample: GpuSample
    wall_ns: int
    mono_ns: int


class Source(Protocol):
    """Something that samples the job's GPUs.

    `sample` returns what is new since the last call (nothing, for a tool that has not answered yet) and never
    raises for a GPU that fails: its reading is empty, and the reason is counted in `errors`.
    """

    errors: dict[str, int]

    @property
    def name(self) -> str:
        """The value of `MonitorStatus.gpu_source`."""
        ...

    def sample(self) -> list[Reading]:
        """The readings that are new."""
        ...

    def close(self) -> None:
        """Let go of the driver or the child process."""
        ...


class SourceError(Exception):
    """This source cannot be used here; the text says why, for the monitor's status."""


def same_id(text: str) -> str:
    """An identifier without what differs between tools: case, `GPU-` and `0x`."""
    return text.strip().lower().removeprefix("gpu-").removeprefix("0x")


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs that a process sees, in its order; `masks` are the variables that say so, for people."""

    devices: list[Device]
    masks: str


def visible(devices: Sequence[Device], environment: Mapping[str, str], vendor: Vendor) -> Visible:
    """The GPUs that the *_VISIBLE_DEVICES of `environment` leave, as the vendor's runtime reads them.

    Entries are indices, UUIDs (or their unambiguous beginnings) and MIG UUIDs; the first entry that names no
    device ends the list. On AMD, ROCR_VISIBLE_DEVICES masks first, and HIP_VISIBLE_DEVICES (or
    CUDA_VISIBLE_DEVICES, which HIP also reads) counts within what is left.

    Raises:
        SourceError: an index could mean several GPUs.
    """
    if vendor == "nvidia":
        names = ["CUDA_VISIBLE_DEVICES"]
        if _order_unknown(devices, environment):
            raise SourceError(
                "CUDA_VISIBLE_DEVICES contains indices, this node has several GPU models, and "
                "CUDA_DEVICE_ORDER "
                "is not PCI_BUS_ID: set it to PCI_BUS_ID, or name the GPUs by UUID"
            )
    else:
        hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
        names = ["ROCR_VISIBLE_DEVICES", hip]
    left = list(devices)
    for name in names:
        if name in environment:
            left = _masked(left, environment[name])
    return Visible(left, ", ".join(f"{name}={environment[name]!r}" for name in names if name in environment))


def _masked(devices: Sequence[Device], mask: str) -> list[Device]:
    chosen = []
    for entry in map(str.strip, mask.split(",")):
        number = int(entry) if entry.isdigit() else None
        found = _named(devices, entry) if number is None else list(devices[number : number + 1])
        if len(found) != 1:
            break
        chosen.append(found[0])
    return chosen


def _order_unknown(devices: Sequence[Device], environment: Mapping[str, str]) -> bool:
    """CUDA counts the fastest GPU first unless told otherwise; the driver's tools count by PCI address."""
    entries = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    several = len({device.name for device in devices}) > 1
    return (
        several
        and any(entry.strip().isdigit() for entry in entries)
        and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    )


def _named(devices: Sequence[Device], identifier: str) -> list[Device]:
    """The devices that `identifier` may mean; as in CUDA, the unique beginning of a UUID is enough."""
    key = same_id(identifier)
    if not key:
        return []
    parts = [part for device in devices for part in device.parts if same_id(part.uuid or "") == key]
    whole = [
        device
        for device in devices
        if same_id(device.uuid or "").startswith(key) or key in map(same_id, device.aliases)
    ]
    return parts or whole


def choose(
    devices: Sequence[Device], wanted: Sequence[str], environment: Mapping[str, str], vendor: Vendor
) -> list[Device]:
    """The job's GPUs in the job's order: those of `wanted` (identifiers), else the visible ones.

    Raises:
        SourceError: one that was asked for is not there, none is left, or an index could mean several
            GPUs.
    """
    if not devices:
        raise SourceError("no GPU on this node")
    seen = ", ".join(device.identifier for device in devices)
    if not wanted:
        found = visible(devices, environment, vendor)
        if not found.devices:
            raise SourceError(f"{found.masks} hides all GPUs from the job; this node has {seen}")
        return found.devices
    chosen = []
    for identifier in wanted:
        matches = _named(devices, identifier)
        if len(matches) != 1:
            raise SourceError(f"{identifier} is not one of this node's GPUs ({seen})")
        chosen.append(matches[0])
    return chosen
