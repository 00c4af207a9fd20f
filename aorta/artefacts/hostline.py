"""A rank's host line: what the host did from launch to launch, and what each launch put on the GPU.

The line is one sequence of items in the order of the host. Before each item the host works; at an item it
launches GPU work, waits for the GPU, waits for its loader, or begins a step. The line holds what a replay
needs to say how long the steps take with other host times.
"""

from __future__ import annotations

import enum

import numpy as np
from msgspec import field

from aorta.artefacts.events import ABSENT, Column, ColumnTable
from aorta.artefacts.mistakes import MistakePlace
from aorta.artefacts.packed import Packed, pack, unpack
from aorta.artefacts.records import Record


class Item(enum.IntEnum):
    """Says what the host does at an item."""

    STEP = 0
    """It begins a step."""
    LAUNCH = 1
    """It puts work on the GPU; it waits for this work where `held_ns` is above 0."""
    SYNC = 2
    """It waits for work that it launched before."""
    LOADER = 3
    """It waits for a batch that other processes make."""
    END = 4
    """The last step ends."""


class Tag(enum.IntFlag):
    """Says what a piece of host work belongs to; several may apply."""

    OPTIMIZER = 1
    PAGEABLE = 2048
    """A copy from pageable memory."""
    LOADER_START = 4096
    """Between two calls of a loader: it begins again."""
    BACKWARD = 2
    RECOMPUTE = 4
    """Forward operators that run inside of the backward pass."""
    READ_BACK = 8
    """A value of the GPU is read by the host: `.item()`, `.cpu()`, `nonzero`."""
    ALLOCATOR = 16
    """Device memory is taken from or given back to the driver."""
    LOADER = 32
    """The loader works in the training process."""
    CPU_OPERATOR = 64
    """An operator computes on the CPU."""
    COLLECTIVE = 128
    """Preparation of communication: c10d, DDP's reducer, FSDP."""
    ANOMALY = 256
    """Checks of anomaly detection."""
    COMPILE = 512
    """Compilation."""
    SILENT = 1024
    """A long stretch without any operator or driver call."""
    PIECE = 8192
    """A piece of a tensor is taken: a slice, rows by their numbers."""
    JOIN = 16384
    """Tensors of a list are put together: `cat`, `stack`."""
    CHAIN = 32768
    """A link of a chain of elementwise kernels."""
    LOOP = 65536
    """A loop of tiny products launches this behind its first round."""


class LineTable(ColumnTable, frozen=True, eq=False):
    """The items of a rank's whole steps."""

    step: Column
    """Number of the step."""
    item: Column
    """An `Item`."""
    work_ns: Column
    """The host's work before the item, as measured."""
    edges: Column
    """Starts and ends of recorded operators in that work."""
    calls: Column
    """Starts and ends of recorded driver calls in that work."""
    held_ns: Column
    """Time that the host waited at the item; 0: it did not wait."""
    behind_ns: Column
    """From the end of what it waited for to the end of the wait."""
    stream: Column
    gpu_ns: Column
    """Duration of what was launched."""
    kind: Column
    """A `ComputeKind` of what was launched."""
    needs: Column
    """Distance, in items, to the one that launched the work that has to end first; 0: none is known."""
    group: Column
    """Code of a collective's group; ABSENT: this is no collective."""
    order: Column
    """Place of a collective within its step and group."""
    bytes: Column
    """Bytes of a copy or collective; ABSENT: not recorded."""
    tags: Column
    """`Tag`s of the item itself."""
    flops: Column
    """Floating-point operations of what was launched; ABSENT: not known."""
    item_bytes: Column
    """Bytes of each number that it computes with; ABSENT: not known."""


class ComputeKind(enum.IntEnum):
    """Says what a kernel computes, by its name."""

    NONE = 0
    """No compute kernel."""
    TENSOR_MATMUL = 1
    PLAIN_MATMUL = 2
    """A matrix product without tensor cores."""
    ATTENTION = 3
    ELEMENTWISE = 4
    """Normalisation, reductions, and elementwise kernels that are fused already."""
    OPTIMIZER = 5
    COMMUNICATION = 6
    COPY = 7
    PAGEABLE_COPY = 8
    READ_COPY = 11
    """From the device to the host."""
    SOFTMAX = 9
    """Softmax of materialised scores."""
    OTHER = 10
    POINTWISE = 13
    """One result per number: activations, sums, casts. A compiler fuses them."""
    OTHER_MATMUL = 12
    """Products with vectors and of fp64 or complex numbers, for which bf16 is no remedy."""


PRODUCTS = (ComputeKind.TENSOR_MATMUL, ComputeKind.PLAIN_MATMUL, ComputeKind.OTHER_MATMUL)
"""Kinds of matrix products."""


class Pace(Record, frozen=True, kw_only=True):
    """Tells how fast the host was while it was traced."""

    operators: float
    """Recorded operators per step."""
    calls: float
    """Recorded driver calls per step."""
    spacing_ns: float | None
    """Median time from an operator's start to that of the first one within it. None if too few nest."""
    launch_ns: float | None
    """First decile of a launch's duration. None if too few were recorded."""
    step_ns: float
    """Mean step, as traced."""
    stacks: bool = False
    """The capture recorded Python functions, which raises its weight further."""


class TagTime(Record, frozen=True, kw_only=True):
    """Tells how much of each item's work a tag covers."""

    tag: int
    work_ns: Packed
    place: MistakePlace | None = None
    """The user's own line that most of it comes from. None if the capture holds no stacks."""


class Census(Record, frozen=True, kw_only=True):
    """Says what occurs in the steps, per step."""

    counts: dict[str, float]
    """Forward passes of DDP, optimizer steps, collectives by operation, allocator calls."""
    units: list[str]
    """Names of FSDP's units."""
    gpu: str | None = None
    """The driver's name of the GPU. None if the trace does not say."""
    kernels: Packed
    """A code of each kernel and launch shape that ran, sorted."""


class HostLine(Record, frozen=True, kw_only=True):
    """`LineTable` in a summary."""

    columns: dict[str, Packed]
    groups: list[str]
    tagged: list[TagTime] = field(default_factory=list)
    pace: Pace
    census: Census


_NEW = ("flops", "item_bytes")
"""Columns that older summaries do not have."""


def pack_line(table: LineTable) -> dict[str, Packed]:
    """The columns of a table, packed."""
    return {name: pack(getattr(table, name)) for name in table.__struct_fields__}


def unpack_line(line: HostLine) -> LineTable:
    """The table of `pack_line`.

    Raises:
        ArtefactError: a column is damaged.
        ValueError: columns have different lengths.
        KeyError: a column is missing.
    """
    known = {name: unpack(line.columns[name]) for name in LineTable.__struct_fields__ if name not in _NEW}
    absent = np.full(len(known["step"]), ABSENT)
    new = {name: unpack(line.columns[name]) if name in line.columns else absent for name in _NEW}
    return LineTable(**known, **new)
