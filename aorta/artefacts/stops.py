"""`nodes/node<i>/stops.json`: when the process of a rank could not run, whatever its program was doing."""

from __future__ import annotations

from typing import Literal

import msgspec

Standing = Literal["stopped", "blocked"]
"""Name by the kernel's state of the process: stopped by a signal or a debugger (T, t), or in an
uninterruptible wait (D), mostly for a disk or for memory."""


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's process did not run for a while."""

    rank: int
    state: Standing
    from_wall_ns: int
    """Time when that was first seen; the ranks are looked at about once per second."""
    to_wall_ns: int
    """Time when that was last seen."""


class NodeStops(msgspec.Struct, frozen=True, kw_only=True):
    """All of them on one node, by time."""

    schema_version: int = 1
    node_index: int
    attempt: int
    stops: list[Stop]
