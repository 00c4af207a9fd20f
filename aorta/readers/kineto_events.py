"""Describes what is used of a Kineto event: its fields as typed records, and its categories."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from aorta.artefacts.events import ABSENT, Kind

POSSIBLE_US = 9 * 10**15
"""The year 2255; ns of it still fit int64."""
GPU_KINDS = {"kernel": Kind.COMPUTE, "gpu_memcpy": Kind.COPY, "gpu_memset": Kind.MEMSET}
GPU_KINDS |= {
    "mtia_ccp_events": Kind.COMPUTE,
    "Kernel": Kind.COMPUTE,
    "Memcpy": Kind.COPY,
    "Memset": Kind.MEMSET,
}
OPERATORS = frozenset(("cpu_op", "Operator"))
EXCHANGED = "record_param_comms"
"""The operator that names a call of a process group. Of a batch of sends and receives, nothing else does."""
KEPT_OPERATORS = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.", "nccl:", "gloo:", "## ", EXCHANGED)
"""Annotations: before these had a category of their own they were operators. And what is read with its
arguments.
"""
FRAMES = "python_function"
ON_GPU, CALLS, ANNOTATIONS, GPU_ANNOTATIONS, INNER = range(5)
"""`INNER` are operators that are no annotations, and Python functions."""
GROUPS = dict.fromkeys(GPU_KINDS, ON_GPU)
"""The group of each category that is used."""
_PLATFORMS = ("cuda", "hip", "xpu", "mtia", "hpu", "npu", "mlu", "musa", "glow", "privateuse1")
GROUPS |= {f"{platform}_{level}": CALLS for platform in _PLATFORMS for level in ("runtime", "driver")}
GROUPS |= {"Runtime": CALLS}
GROUPS |= dict.fromkeys((*OPERATORS, "user_annotation"), ANNOTATIONS)
GROUPS |= {"gpu_user_annotation": GPU_ANNOTATIONS, FRAMES: INNER}

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
    splits_in: Any = msgspec.field(name="In split size", default=None)
    """Shares of an all-to-all's input by peer."""
    group_size: Number = msgspec.field(name="Group size", default=ABSENT)
    dtype: str | None = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    description: str | None = msgspec.field(name="Process Group Description", default=None)
    sequence: Number = msgspec.field(name="Seq", default=ABSENT)
    source: Number = msgspec.field(name="Src Rank", default=None)
    """Rank that sends, for a receive."""
    target: Number = msgspec.field(name="Dst Rank", default=None)
    """Rank that receives, for a send."""
    dims: Any = msgspec.field(name="Input Dims", default=None)
    """Dimensions of the tensors that an annotation was given, where shapes were recorded."""
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


EVENTS = msgspec.json.Decoder(list[Event])
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
EVENT = msgspec.json.Decoder(Event)
_TOP = msgspec.json.Decoder(dict[str, Raw])
_FIELDS = {field.encode_name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Event)}
_ARGUMENTS = {
    field.encode_name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Arguments)
}


def loose_event(text: bytes) -> bytes:
    """Returns the text of an event without the times and arguments that have a wrong type.

    Raises:
        msgspec.DecodeError: it is no JSON object.
    """
    fields = _TOP.decode(text)
    kept: dict[str, Raw] = {name: fields[name] for name in ("ph", "cat", "name") if name in fields}
    kept |= _of_right_type(fields, _FIELDS)
    if "args" in fields and "args" not in kept:
        with contextlib.suppress(msgspec.DecodeError):
            kept["args"] = Raw(msgspec.json.encode(_of_right_type(_TOP.decode(fields["args"]), _ARGUMENTS)))
    return msgspec.json.encode(kept)


def _of_right_type(values: dict[str, Raw], types: dict[str, msgspec.json.Decoder[Any]]) -> dict[str, Raw]:
    kept = {}
    for name, value in values.items():
        try:
            if name in types:
                types[name].decode(value)
                kept[name] = value
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return kept


class Numbering(dict[str, int]):
    """Names by number: looking one up that is new gives it the next."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number
