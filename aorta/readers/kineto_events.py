"""What is used of a Kineto event: its fields as typed records, and its categories."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from aorta.artefacts.events import ABSENT, Kind

POSSIBLE_US = 9 * 10**15
"""The year 2255; ns of it still fit int64."""
GPU_KINDS = {"kernel": Kind.COMPUTE, "gpu_memcpy": Kind.COPY, "gpu_memset": Kind.MEMSET}
GPU_KINDS |= {"Kernel": Kind.COMPUTE, "Memcpy": Kind.COPY, "Memset": Kind.MEMSET}
OPERATORS = frozenset(("cpu_op", "Operator"))
KEPT_OPERATORS = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.", "nccl:", "gloo:", "## ")
"""Annotations: before these had a category of their own they were operators."""
ON_GPU, CALLS, ANNOTATIONS, GPU_ANNOTATIONS = range(4)
GROUPS = dict.fromkeys(GPU_KINDS, ON_GPU)
"""The group of each category that is used."""
GROUPS |= dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"), CALLS)
GROUPS |= dict.fromkeys((*OPERATORS, "user_annotation"), ANNOTATIONS)
GROUPS |= {"gpu_user_annotation": GPU_ANNOTATIONS}

Number: TypeAlias = int | float | str | None


class Arguments(Struct, gc=False, frozen=True):
    """The arguments of an event that are used, whatever its kind."""

    device: Number = ABSENT
    stream: Number = ABSENT
    correlation: Number = ABSENT
    bytes: Number = ABSENT
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    elements_in: Number = msgspec.field(name="In msg nelems", default=ABSENT)
    elements_out: Number = msgspec.field(name="Out msg nelems", default=ABSENT)
    group_size: Number = msgspec.field(name="Group size", default=ABSENT)
    dtype: str | None = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    sequence: Number = msgspec.field(name="Seq", default=ABSENT)
    dims: Any = msgspec.field(name="Input Dims", default=None)
    """Of the tensors that an annotation was given, where shapes were recorded."""
    types: Any = msgspec.field(name="Input type", default=None)


_NO_ARGUMENTS = Arguments()


class Event(Struct, gc=False):
    """The fields of an event that are used; the rest is skipped."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    tid: Number = None
    args: Arguments = _NO_ARGUMENTS


class ExactEvent(Struct, gc=False):
    """`Event` with times as they are written."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Decimal | None = None
    dur: Decimal | None = None
    tid: Number = None
    args: Arguments = _NO_ARGUMENTS


class Bare(Struct, omit_defaults=True):
    """The text of an event's fields, without its arguments."""

    ph: Raw = Raw(b'""')
    cat: Raw = Raw(b'""')
    name: Raw = Raw(b'""')
    ts: Raw = Raw(b"null")
    dur: Raw = Raw(b"null")
    tid: Raw = Raw(b"null")


EVENTS = msgspec.json.Decoder(list[Event])
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
EVENT = msgspec.json.Decoder(Event)
BARE = msgspec.json.Decoder(Bare)


class Numbering(dict[str, int]):
    """Names by number: looking one up that is new gives it the next."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number
