"""What is read of a known layout at once is what the JSON decoder reads of it, whatever stands in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.artefacts.events import ColumnTable
from aorta.readers import kineto_decode
from aorta.readers.fast.kineto_layout import find
from aorta.readers.fast.kineto_spans import Learned
from aorta.readers.kineto import join
from aorta.readers.kineto_columns import Columns, flush
from aorta.readers.kineto_events import KEPT_OPERATORS
from aorta.readers.kineto_stream import AHEAD

BEHIND = b",\n  {" + b" " * AHEAD


def event(category: str, name: str, ts: str, dur: str, args: str, pid: str = "0", tid: str = "7") -> str:
    return (
        f'\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {ts}, "dur": {dur},\n    "args": {{\n      {args}\n    }}'
    )


def call(correlation: object, name: str = "cudaLaunchKernel", ts: str = "17.250", **more: str) -> str:
    args = f'"External id": 5,      "cbid": 211, "correlation": {correlation}'
    return event("cuda_runtime", name, ts=f"4458676983{ts}", dur=more.pop("dur", "3.001"), args=args, **more)


def kernel(
    correlation: object, name: str = "gemm", rest: str = ', "grid": [8, 1, 1], "block": [32, 1, 1]'
) -> str:
    args = f'"queued": 0, "device": 2, "context": 1,      "stream": 20, "correlation": {correlation}{rest}'
    return event("kernel", name, ts="4458676983099.750", dur="41.407", args=args)


def joined(events: list[str]) -> bytes:
    return b"{" + "\n  },\n  {".join(events).encode("utf-8", "surrogatepass") + b"\n  }"


def on_one_line(text: bytes) -> bytes:
    """A text of Kineto's layout in that of Python's `json`."""
    for kineto, python in (
        (b"\n  },\n  {", b"}, {"),
        (b",\n    ", b", "),
        (b"{\n      ", b"{"),
        (b"{\n    ", b"{"),
        (b"\n    }", b"}"),
        (b"\n  }", b"}"),
    ):
        text = text.replace(kineto, python)
    return text


layouts = pytest.mark.parametrize("laid_out", [bytes, on_one_line], ids=["kineto", "python"])
Layout = Callable[[bytes], bytes]


def tables(text: bytes, *, as_json: bool) -> dict[str, Any]:
    """Each column of what is read, names instead of their numbers."""
    columns = Columns()
    with pytest.MonkeyPatch.context() as patch:
        if as_json:
            patch.setattr(kineto_decode, "find", lambda *_: None)
        behind = kineto_decode.add_chunk(columns, text + BEHIND, len(text))
    flush(columns)
    join(columns)
    names = np.array([*columns.names, None], dtype=object)
    result: dict[str, Any] = {"behind": behind, "events": columns.events, "faults": columns.faults}
    for kind in ("gpu", "collectives", "host", "api", "gpu_ranges", "operators"):
        (table,) = getattr(columns, kind)
        assert isinstance(table, ColumnTable)
        for name in table.__struct_fields__:
            column = getattr(table, name)
            named = name in {"name", "op", "group"}
            result[f"{kind}.{name}"] = (names[column] if named else column).tolist()
    return result


def read_at_once(text: bytes) -> int:
    """How many events are read without the JSON decoder."""
    found = find(text + BEHIND, len(text), Learned(Columns().names))
    return 0 if found is None else sum(len(rows.event) for rows in found.read)


texts = st.sampled_from(
    ["cudaLaunchKernel", "a", "", "é", "x" * 700, 'q\\"uote', "\\u00e9", "{lambda}", "a\\", 'q"uote', "\t"]
)
numbers = st.one_of(
    st.integers(0, 10**17).map(str),
    st.sampled_from(
        ["-1", "007", "0", "1.5", "1e3", "null", '"7"', "", "true", "12345678901234567890", "[1]"]
    ),
)
times = st.one_of(
    st.tuples(st.integers(0, 10**16), st.integers(0, 999)).map(lambda t: f"{t[0]}.{t[1]:03d}"),
    st.integers(0, 10**16).map(str),
    st.sampled_from(["-1.000", "1.5", "1.2345", "4458676983017.250", "NaN", "0012345678901.500", "1e9"]),
)
arguments = st.sampled_from(
    [
        '"correlation": {n}',
        '"External id": 1,\n      "cbid": {n}, "correlation": {m}',
        '"queued": 0, "device": {n}, "context": 1,      "stream": {m}, "correlation": 9, "grid": [1, 2, {n}]',
        '"device": 0, "stream": 7, "correlation": {n},      "bytes": {m}, "memory bandwidth (GB/s)": 0.78',
        '"device": 0, "device": 1, "stream": 3, "correlation": {n}',
        '"bytes": 5, "device": 0, "stream": 3, "correlation": {n}',
        '"stream": 3, "correlation": {n}, "stream": 4',
        '"stream": 3, "correlation": {n}\n    }}, "ts": {m}, "args": {{',
        '"correlation": 1, "Collective name": "broadcast", "dtype": "Int", "In msg nelems": {n}',
        '"stream": 3, "correlation": 1, "Collective name": "x", "Seq": {m}, "Process Group Name": {n}',
        '"other": "text", "correlation": {n}',
        '"correlation" : {n}',
        "",
    ]
)
spans = st.builds(
    lambda category, name, ts, dur, args, tid, n, m: event(
        category, name, ts, dur, args.format(n=n, m=m), tid=tid
    ),
    st.sampled_from(
        ["kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "kernels"]
    ),
    texts, times, times, arguments, numbers, numbers, numbers,
)  # fmt: skip
others = st.sampled_from(
    [
        '\n    "ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 1.000,\n    "cat": "ac2g", "name": "ac2g"',
        '\n    "name": "process", "ph": "M", "ts": 1.0, "pid": 0,\n    "args": {\n      "name": "p"\n    }',
        event("cpu_op", "aten::add", "4458676983017.250", "3.001", '"External id": 1'),
        *(
            event("cpu_op", f"{name}7", "4458676983017.250", "3.001", '"External id": 1')
            for name in KEPT_OPERATORS
        ),
        call(9),
        kernel(8),
    ]
)


@layouts
@settings(max_examples=200)
@given(events=st.lists(st.one_of(spans, others), max_size=12))
def test_as_the_decoder_reads_it(laid_out: Layout, events: list[str]) -> None:
    text = laid_out(joined([call(1), *events, kernel(2)]))
    assert tables(text, as_json=False) == tables(text, as_json=True)


@layouts
@settings(max_examples=200)
@given(data=st.data())
def test_as_the_decoder_reads_it_with_any_byte_changed(laid_out: Layout, data: st.DataObject) -> None:
    events = [call(1), call(22), kernel(22), kernel(3), call(22, dur="4.000"), kernel(4)]
    text = bytearray(laid_out(joined(events)))
    for _ in range(data.draw(st.integers(1, 2))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.sampled_from(b'0159.-,:"{}[]\\\n aeX\xc3')
        )
    assert tables(bytes(text), as_json=False) == tables(bytes(text), as_json=True)


@layouts
def test_events_are_read_at_once(laid_out: Layout) -> None:
    """All but the first, which stands behind something else; the text needs no second template."""
    events = [call(1000 + n, ts=f"{n:03d}.125") for n in range(50)] + [kernel(1000 + n) for n in range(50)]
    text = laid_out(joined(events))
    assert read_at_once(text) == 99
    result = tables(text, as_json=False)
    assert result["api.correlation"] == list(range(1000, 1050))
    assert result["api.start_ns"] == [4458676983_000_125 + n * 1000 for n in range(50)]
    assert result["gpu.end_ns"] == [4458676983_099_750 + 41_407] * 50
    assert (result["gpu.device"][0], result["gpu.stream"][0], result["api.lane"][0]) == (2, 20, 7)


def test_other_widths_are_other_templates() -> None:
    text = joined([call(10**digits, dur=f"{10**digits}.000") for digits in (1, 1, 2, 3, 4)])
    assert read_at_once(text) == 4
    assert tables(text, as_json=False)["api.correlation"] == [10, 10, 100, 1000, 10000]


@layouts
def test_what_is_left_keeps_its_place_among_what_is_read(laid_out: Layout) -> None:
    """Events that start at the same time keep the order of the file."""
    text = laid_out(joined([kernel(1), kernel(2), kernel("3.0"), kernel(4), kernel("[]"), kernel(6)]))
    assert read_at_once(text) == 3
    assert tables(text, as_json=False)["gpu.correlation"] == [1, 2, 3, 4, -1, 6]


def test_the_arguments_of_operators_are_not_decoded() -> None:
    times = ("4458676983017.250", "3.001")
    plain = event("cpu_op", "aten::add", *times, args="z")
    kept = event("cpu_op", "ProfilerStep#7", *times, args='"External id": 1')
    result = tables(joined([call(1), plain, kept, plain]), as_json=False)
    assert (result["host.name"], result["events"], result["faults"]) == (["ProfilerStep#7"], 4, {})
    assert result["operators.name"] == ["aten::add", "aten::add"]
    assert result["operators.start_ns"] == [4458676983017250] * 2
    assert result["operators.end_ns"] == [4458676983020251] * 2


def test_events_that_are_laid_out_otherwise_stand_between_the_others() -> None:
    """They look like a part of the event before them."""
    odd = json.dumps({"ph": "X", "cat": "kernel", "name": "odd", "ts": 4458676983099.75, "dur": 1})
    text = joined([kernel(1), kernel(2), kernel(3), kernel(4)])
    second = text.index(b"\n  },\n  {", len(text) // 3) + len(b"\n  }")
    text = text[:second] + f",{odd},\n{odd}".encode() + text[second:]
    assert read_at_once(text) == 1
    result = tables(text, as_json=False)
    assert (result["gpu.correlation"], result["events"]) == ([1, 2, -1, -1, 3, 4], 6)
    assert result == tables(text, as_json=True)


@pytest.mark.parametrize("category", ["cpu_op", "ac2g"])
def test_what_stands_behind_an_unused_event_is_not_lost_with_it(category: str) -> None:
    arrow = '\n    "ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 1.000,\n    "cat": "ac2g", "name": "ac2g"'
    unused = (
        arrow if category == "ac2g" else event("cpu_op", "aten::add", "1.000", "1.000", '"External id": 1')
    )
    odd = '{"name": "odd", "ph": "X", "cat": "kernel", "ts": 4458676983099.75, "dur": 1}'
    text = on_one_line(joined([call(1), unused, kernel(3)])).replace(b"}, {", b"}, %b, {" % odd.encode())
    text = text.replace(b", " + odd.encode(), b"", 1)
    assert b'"%b"' % category.encode() in text
    assert tables(text, as_json=False)["gpu.name"] == ["odd", "gemm"]


def test_another_layout_is_left() -> None:
    compact = b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"stream":1}}'
    assert find(compact + BEHIND, len(compact), Learned(Columns().names)) is None
