"""What was seen of the processes of a running job: records that travel from its nodes."""

from __future__ import annotations

from typing import Literal

import msgspec

Frame = tuple[str, str, int]
"""Function, file, line."""
Role = Literal["rank", "loader", "launcher", "other"]


class StackShare(msgspec.Struct, frozen=True):
    """One stack of a thread, and how often it was seen."""

    frames: list[Frame]
    """Outermost first."""
    samples: int


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a job, watched for some seconds."""

    pid: int
    host: str
    command: str
    rank: int | None
    """From the process's environment; None: not there."""
    world_size: int | None
    parent: int
    role: Role
    stacks: list[StackShare]
    """Stacks of the main thread."""
    seconds: float
    cpu_seconds: float | None
    """CPU time of the process while it was watched."""
    problem: str | None = None
    """Why there are no stacks."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a job on one node."""

    host: str
    processes: list[ProcessView]
    problems: list[str] = []
