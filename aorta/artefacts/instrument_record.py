"""Describes what the hooks of `aorta.inject` saw in one rank: `rank_<rank>_instrument.json`.

The standard library alone, as `step_record`: it is written in the user's own Python.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PARTS = ("data", "forward", "backward", "optimizer", "other")
"""Parts of a step in which the training thread is sampled; `other`: outside of the four."""
CHECKPOINT = "checkpoint"
"""Part of the places that write a checkpoint. They are no samples: each call counts once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFunction:
    """A function in which the training thread was found, with the line where it was found most often."""

    part: str
    """One of `PARTS`, or `CHECKPOINT`."""
    function: str
    file: str
    line: int
    samples: int
    time_ms: float | None = None
    """Time that its samples stand for; None: not recorded."""
    package: bool = False
    """True for a place of an installed package that the program's own code called: the innermost frame that
    is neither torch's nor the standard library's. Such places and the program's own count the same samples.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class InstrumentRecord:
    """One rank with the hooks."""

    schema_version: int = 1
    rank: int
    pid: int
    python: str
    """The interpreter."""
    python_version: str
    torch_version: str
    threads: int | None = None
    """Threads of torch's operators on the CPU. None if not recorded."""
    loader_workers: int | None = None
    """Workers of the DataLoader that gave most batches. None if none gave one, or it was not recorded."""
    loader_starts: int | None = None
    """Starts of a loader's workers in steady steps. None if no loader gave a batch, or if that was not
    recorded.
    """
    loader_start_ms: float = 0.0
    """Time that the training thread waited for these starts, for the first batch behind each, and for the end
    of the workers before.
    """
    loader_ready: float | None = None
    """Mean number of batches that workers had ready when one was asked for; None: not recorded."""
    roots: list[str] = field(default_factory=list)
    """Classes of the modules whose forward pass is timed."""
    seen: list[str] = field(default_factory=list)
    """Parts that occurred at least once: names of hooks."""
    hooks_off: dict[str, str] = field(default_factory=dict)
    """Hooks that failed and were switched off, and why."""
    note: str | None = None
    """Why the hooks do not record, where they do not."""
    ended: bool = False
    """The program came to its end without an uncaught exception; later aborts are the interpreter's."""
    steps: int = 0
    """Steady steps over which the training thread was sampled."""
    samples: dict[str, int] = field(default_factory=dict)
    """Samples per part, over those steps."""
    sampled_ms: dict[str, float] | None = None
    """Time that the samples of each part stand for; None: not recorded. The first samples follow each other
    sooner than later ones, so shares are those of this time and not of the numbers of samples.
    """
    interval_ms: float = 0.0
    """Mean time between two samples."""
    places: list[SampledFunction] = field(default_factory=list)


def encode(record: InstrumentRecord) -> bytes:
    """The record as JSON."""
    return json.dumps(record, default=_fields, indent=2).encode() + b"\n"


def _fields(part: object) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}  # type: ignore[attr-defined]
