"""Which of a node's GPUs are the job's, and in which order. Pure: no driver is asked here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aorta.artefacts.samples import GpuSample


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as a source lists it. `aliases` are other identifiers of the same GPU."""

    index: int
    uuid: str | None
    name: str | None
    aliases: tuple[str, ...] = ()


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
        """What `MonitorStatus.gpu_source` says."""
        ...

    def sample(self) -> list[Reading]:
        """What is new."""
        ...

    def close(self) -> None:
        """Let go of the driver or the child process."""
        ...


class SourceError(Exception):
    """This source cannot be used here; the text says why, for the monitor's status."""


_NO_DEVICE = ("", "-1", "NoDevFiles")


def same_id(text: str) -> str:
    """An identifier without what differs between tools: case, `GPU-` and `0x`."""
    return text.strip().lower().removeprefix("gpu-").removeprefix("0x")


def visible(environment: Mapping[str, str], vendor: str) -> list[str] | None:
    """The tokens of the variables by which the job sees only some GPUs: indices or identifiers; None: it sees
    all.

    AMD's HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES, which HIP also reads) counts within
    ROCR_VISIBLE_DEVICES.
    """
    if vendor == "nvidia":
        return _tokens(environment.get("CUDA_VISIBLE_DEVICES"))
    outer = _tokens(environment.get("ROCR_VISIBLE_DEVICES"))
    inner = _tokens(environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES")))
    if outer is None or inner is None:
        return outer if inner is None else inner
    return [outer[int(t)] if t.isdigit() else t for t in inner if not t.isdigit() or int(t) < len(outer)]


def _tokens(text: str | None) -> list[str] | None:
    if text is None:
        return None
    # CUDA ends its list at the first entry that is no device.
    return list(itertools.takewhile(lambda entry: entry not in _NO_DEVICE, map(str.strip, text.split(","))))


def choose(
    devices: Sequence[Device], wanted: Sequence[str], environment: Mapping[str, str], vendor: str
) -> list[Device]:
    """The job's GPUs in the job's order: those of `wanted` (identifiers), else the visible ones, else all.

    Raises:
        SourceError: one that was asked for is not there, none is left, or an index could mean several
        GPUs.
    """
    if not devices:
        raise SourceError("no GPU on this node")
    if wanted:
        return [_by_id(devices, uuid) for uuid in wanted]
    tokens = visible(environment, vendor)
    if tokens is None:
        return list(devices)
    if not tokens:
        raise SourceError("the job sees no GPU: its *_VISIBLE_DEVICES is empty")
    if any(token.isdigit() for token in tokens) and _order_unknown(devices, environment, vendor):
        raise SourceError(
            "CUDA_VISIBLE_DEVICES holds indices, this node has several GPU models, and CUDA_DEVICE_ORDER is "
            "not PCI_BUS_ID: name the GPUs with --gpu-uuid"
        )
    return [_by_index(devices, int(token)) if token.isdigit() else _by_id(devices, token) for token in tokens]


def _order_unknown(devices: Sequence[Device], environment: Mapping[str, str], vendor: str) -> bool:
    """CUDA counts the fastest GPU first unless told otherwise; the driver's tools count by PCI address."""
    several = len({device.name for device in devices}) > 1
    return vendor == "nvidia" and several and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _by_id(devices: Sequence[Device], wanted: str) -> Device:
    """As in CUDA, the beginning of an identifier is enough when only one GPU has it."""
    key = same_id(wanted)
    found = [
        device
        for device in devices
        if same_id(device.uuid or "").startswith(key) or key in map(same_id, device.aliases)
    ]
    if len(found) != 1 or not key:
        seen = ", ".join(device.uuid or f"index {device.index}" for device in devices)
        raise SourceError(f"{wanted} is not one of this node's GPUs ({seen})")
    return found[0]


def _by_index(devices: Sequence[Device], index: int) -> Device:
    found = next((device for device in devices if device.index == index), None)
    if found is None:
        raise SourceError(f"GPU {index} of *_VISIBLE_DEVICES is not there: there are {len(devices)}")
    return found
