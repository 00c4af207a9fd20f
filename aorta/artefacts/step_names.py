"""Names in step records. Standard library only: the recorder uses them beside programs of users."""

from __future__ import annotations

from typing import Literal

COMMUNICATION_STREAMS = (
    "allreduce",
    "reducescatter",
    "allgather",
    "broadcast",
    "alltoall",
    "p2p",
    "barrier",
    "reduce",
    "gather",
    "scatter",
    "other",
)
"""Streams of `Range` that hold calls of `torch.distributed`; `p2p` are sends and receives."""

Phase = Literal["warmup", "steady", "validation", "checkpoint", "profiler"]
Between = Literal["validation", "checkpoint", "logging"]
"""Names for the work that a program does between steps."""
