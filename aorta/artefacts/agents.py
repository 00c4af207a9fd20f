"""Finds which process wrote a marker, and whether it still runs.

One that is killed leaves its marker behind.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from aorta.artefacts.files import changed_ns
from aorta.artefacts.processes import started
from aorta.artefacts.records import FIRST_FAILURE, NodeStatus, ProcessId


def this_process() -> ProcessId | None:
    """Returns who this process is; None on a system without /proc."""
    where, ticks = _machine(), started(os.getpid())
    if where is None or ticks is None:
        return None
    return ProcessId(pid=os.getpid(), started_ticks=ticks, machine=where)


def _machine() -> str | None:
    """Returns this boot of this machine, and which of its processes are seen from here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return None


def is_gone(process: ProcessId | None) -> bool:
    """Returns True if a process is known to have ended; False where it cannot be seen from here."""
    if process is None or process.machine != _machine():
        return False
    return started(process.pid) != process.started_ticks


def as_it_is(marker: NodeStatus, path: Path) -> NodeStatus:
    """Returns a marker that says that its node runs as failed where its agent is gone.

    The agent wrote to `path` until shortly before, so that this node counts as failed before those that its
    end made fail.
    """
    if marker.state != "running" or not is_gone(marker.agent):
        return marker
    assert marker.agent is not None
    why = f"{FIRST_FAILURE}the node agent (process {marker.agent.pid}) was killed"
    return replace(marker, state="failed", ended_wall_ns=changed_ns(path) or None, lost=[why, *marker.lost])
