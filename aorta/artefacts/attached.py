"""Describes what was seen of the processes of a running job: records that travel from its nodes."""

from __future__ import annotations

from typing import Literal

import msgspec

from aorta.artefacts.masking import here

_MARK = "aorta-attach:"
Frame = tuple[str, str, int]
"""Function, file, line."""
Role = Literal["rank", "loader", "launcher", "other"]


class StackShare(msgspec.Struct, frozen=True):
    """One stack of a thread, and how often it was seen."""

    frames: list[Frame]
    """Outermost first."""
    samples: int


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of one process at the end of the watch; null: the driver does not say."""

    uuid: str
    index: int | None = None
    utilization_pct: float | None = None
    """Share of time in which a kernel ran; a kernel that waits for another GPU counts."""
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    slowed_by: list[str] | None = None
    """Reasons of the driver for a lower clock. Empty if there are none."""


class RecorderDump(msgspec.Struct, frozen=True, kw_only=True):
    """torch's flight recorder of one process."""

    data: bytes
    """The dump, packed by zlib."""
    wall_ns: int
    """Time when it was made."""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job, watched for some seconds."""

    pid: int
    host: str
    command: str
    rank: int | None
    """From the process's environment. None if not there."""
    world_size: int | None
    parent: int
    role: Role
    stacks: list[StackShare]
    """Stacks of the main thread."""
    seconds: float
    cpu_seconds: float | None
    """CPU time of the process and its children while it was watched."""
    io_bytes: int | None = None
    """Bytes that the process and its children read and wrote meanwhile."""
    runs: bool = False
    """The process or a child ran or waited for a core, both at the start and at the end of the watch."""
    problem: str | None = None
    """Why there are no stacks."""
    gpu: GpuView | None = None
    """Null: it uses none, or nvidia-smi is not there or does not list it."""
    recorder: RecorderDump | None = None
    """Null: not asked for, or the process offers none."""
    program: str = ""
    """The same for all ranks of one training: several may run in one job."""
    step: str | None = None
    """Number of the Slurm step. None if there are none."""
    run_dir: str | None = None
    """Run directory of a process that aorta started."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a job on one node."""

    host: str
    processes: list[ProcessView]
    problems: list[str] = []


class NodeStandstill(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes/node<i>/standstill.json`: no rank of the node went on, and where each of them was."""

    schema_version: int = 1
    node_index: int
    attempt: int
    since_wall_ns: int
    """Time when a rank of this node last wrote a step record, or started."""
    seen_wall_ns: int
    resumed_wall_ns: int | None = None
    """Time when a rank went on after all. None if none did."""
    view: NodeView


def encoded(view: NodeView) -> str:
    """One line that `decoded` recognises among what else a node prints, without secrets of command lines."""
    mask = here().text
    shown = [msgspec.structs.replace(item, command=mask(item.command)) for item in view.processes]
    plain = msgspec.structs.replace(view, processes=shown, problems=[mask(item) for item in view.problems])
    return _MARK + msgspec.json.encode(plain).decode()


def decoded(line: str) -> NodeView | None:
    """The view in a line of output. None if there is none in it."""
    _, mark, text = line.partition(_MARK)
    if not mark:
        return None
    try:
        return msgspec.json.decode(text, type=NodeView)
    except msgspec.DecodeError:
        return None
