"""Calls of collectives as torch's flight recorder keeps them: one recording per rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as one of its members knows it."""

    name: str
    about: str
    """Description that the program gave, such as `TENSOR_MODEL_PARALLEL_GROUP`."""
    ranks: tuple[int, ...]
    """Global ranks of the members. Empty if not recorded."""


@dataclass(frozen=True, slots=True)
class FlightCall:
    """One collective, or one send or receive, that a rank enqueued."""

    group: str
    number: int
    """Position among the group's collectives, or among its sends and receives on this rank."""
    operation: str
    """Without the backend: `all_reduce`, `send`, `recv`, ..."""
    p2p: bool
    peer: int | None
    """Global rank at the other end of a send or receive. None for a collective, or if unknown."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of the input tensors."""
    types: tuple[str, ...]
    created_ns: int | None
    """Wall clock when the host enqueued the call."""
    started: bool | None
    """True: its GPU work was seen to run. False: it was seen not to run. None if not recorded."""
    finished: bool
    finished_ns: int | None = None
    where: tuple[tuple[str, str, int], ...] = ()
    """Stack of the caller, innermost first: function, file, line."""

    @property
    def elements(self) -> tuple[int, ...]:
        """Number of elements of each input tensor: two shapes of as many elements transfer the same."""
        return tuple(math.prod(shape) for shape in self.sizes)


@dataclass(frozen=True, slots=True)
class Recording:
    """The flight recorder of one rank."""

    source: str
    """File, or process, that it was read from."""
    rank: int | None
    groups: Mapping[str, FlightGroup]
    calls: tuple[FlightCall, ...]
    """Calls that are still in the recorder's buffer, oldest first."""
    enqueued: Mapping[str, int] = field(default_factory=dict)
    """Group to the number of the last collective that this rank enqueued; 0: it never called one."""
    completed: Mapping[str, int] = field(default_factory=dict)
    """Group to the number of the last collective that ended on this rank. Absent: not known."""
    whole: bool = False
    """True: the buffer holds every call since the start."""
    unseen_sends: bool = False
    """True: gloo counted sends or receives, which it does not record."""
    taken_ns: int | None = None
    """Wall clock when the dump was made, or else when its file was last written. None if not known."""

    def pending(self) -> tuple[FlightCall, ...]:
        """The calls that had not ended, oldest first."""
        return tuple(call for call in self.calls if not call.finished)
