"""Dumps of flight recorders that somebody made to harm: read or refused, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from typing import Any

import pytest

from aorta.errors import ArtefactError
from aorta.readers import flight

ENTRY: dict[str, Any] = {
    "record_id": 0, "process_group": ["0", "d"], "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1,
    "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[4]],
    "input_dtypes": ["Float"], "state": "scheduled", "retired": False, "is_p2p": False,
    "frames": [{"name": "f", "filename": "x", "line": 1}],
}  # fmt: skip


def dump(ranks: object = "[0, 1]", **changes: object) -> bytes:
    groups = {"0": {"name": "0", "desc": "d", "ranks": ranks}}
    return json.dumps({"pg_config": groups, "entries": [ENTRY | changes]}).encode()


def test_numbers_beyond_64_bits_are_no_numbers() -> None:
    found = flight.decode(dump("[0, " + "9" * 5000 + ", 1]"), "f", 0)
    assert found.groups["0"].ranks == (0, 1)
    found = flight.decode(dump(input_sizes=[[10**4000, 3], [2] * 200_000]), "f", 0)
    assert found.calls[0].elements == (3, 2**64)
    assert flight.decode(dump(), "f", 0).calls[0].elements == (4,)


@pytest.mark.parametrize("key", list(ENTRY))
@pytest.mark.parametrize("value", [-1, 10**30, "x", None, [], {}, [[[1]]], 1e308, True, [None], {"a": 1}])
def test_any_type_is_read_or_refused(key: str, value: object) -> None:
    with contextlib.suppress(ArtefactError):
        found = flight.decode(dump(**{key: value}), "f", 0)
        assert len(found.calls) <= 1
        assert len(found.pending()) <= 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr" + struct.pack("<I", 0x18000000) + b".",
        b"\x80\x05\x96" + struct.pack("<Q", 6 << 30) + b"x.",
        b"\x80\x04\x8e" + struct.pack("<Q", 6 << 30) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 6 << 30) + b"N.",
    ],
    ids=["far memory", "bytearray", "bytes", "frame"],
)
def test_few_bytes_take_little_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ArtefactError):
            flight.decode(data, "f", 0)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
