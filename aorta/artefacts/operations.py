"""Operations of a job that is a mesh: computation, sends, receives and collectives of each worker."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]

UNKNOWN = -1
"""In a column: the record does not say."""


class OperationRole(IntEnum):
    """The part that an operation plays."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2
    """The backward pass of the weights alone, which zero-bubble schedules move."""
    LOCAL = 3
    """Other work of one worker, such as the optimizer."""
    SEND = 4
    RECEIVE = 5
    COLLECTIVE = 6


COMPUTE = (OperationRole.FORWARD, OperationRole.BACKWARD, OperationRole.WEIGHT)


class MeshSizes(Struct, frozen=True):
    """Sizes of the job's dimensions. None if unknown."""

    data: int | None = None
    pipeline: int | None = None
    tensor: int | None = None
    sequence: int | None = None
    virtual: int | None = None
    """Model chunks of each stage."""


class Operations(Struct, frozen=True, eq=False):
    """One row per operation, in order of worker, step and start. (rows,) each."""

    sizes: MeshSizes
    kinds: tuple[str, ...]
    """Names as they were recorded."""
    roles: tuple[OperationRole, ...]
    """The role of each kind."""
    kind: Ints
    rank: Ints
    replica: Ints
    """The data-parallel rank."""
    stage: Ints
    step: Ints
    chunk: Ints
    """The model chunk within the stage; `UNKNOWN` where there is none."""
    microbatch: Ints
    start: Ints
    """ns on one clock of all workers."""
    end: Ints
    group: Ints | None = None
    """The group that a send, receive or collective is of, where it is known; else names and stages tell."""
    batch: Ints | None = None
    """Sends and receives of a worker with one number were started together and are waited for together;
    `UNKNOWN` for one on its own. None if unknown.
    """
    said: tuple[str, ...] = ()
    """Problems with some of the rows."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def role(self) -> Ints:
        """The role of each operation."""
        return np.array(self.roles, dtype=np.int64)[self.kind]

    @property
    def stages(self) -> int:
        """Number of stages that any operation is of."""
        return int(self.stage.max(initial=-1)) + 1

    def workers(self, stage: int) -> list[int]:
        """Ranks of a stage."""
        return [int(rank) for rank in np.unique(self.rank[self.stage == stage])]

    def replica_ranks(self, replica: int) -> list[int]:
        """Ranks of a replica."""
        return [int(rank) for rank in np.unique(self.rank[self.replica == replica])]


_WORDS: tuple[tuple[OperationRole, tuple[str, ...], tuple[str, ...]], ...] = (
    (OperationRole.SEND, ("send",), ()),
    (OperationRole.RECEIVE, ("recv", "receive"), ()),
    (
        OperationRole.COLLECTIVE,
        ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "barrier", "clip"),
        (),
    ),
    (OperationRole.WEIGHT, ("wgrad", "weight"), ("w",)),
    (OperationRole.BACKWARD, ("backward", "bwd", "dgrad"), ("b", "bp")),
    (OperationRole.FORWARD, ("forward", "fwd"), ("f", "fp")),
)
"""The first role of which a name has one of the words, or is one of the letters."""


def role_of(name: str) -> OperationRole:
    """The role that the name of an operation says."""
    text = re.sub(r"[\s_.-]", "", name.lower())
    for role, words, letters in _WORDS:
        if text in letters or any(word in text for word in words):
            return role
    return OperationRole.LOCAL


def backwards(name: str) -> bool:
    """Returns True if a send or receive carries gradients, from a later stage to an earlier one."""
    text = name.lower()
    return any(word in text for word in ("backward", "bwd", "grad"))
