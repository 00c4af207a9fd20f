"""Kineto: exact times, what is kept, ranks, collectives, and files that are not as they should be."""

from __future__ import annotations

import gzip
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.events import ABSENT, Kind, RangeRole, Trace
from aorta.errors import ArtefactError
from aorta.readers import kineto
from aorta.readers.detect import detect
from aorta.readers.kineto_columns import Columns, flush
from aorta.readers.kineto_decode import add_chunk
from tests.support.kineto import event, kernel, text, write

BASE = 1711964646000000000


def times(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.gpu.start_ns.tolist(), trace.gpu.end_ns.tolist(), strict=True))


def reasons(trace: Trace) -> str:
    return " | ".join(problem.reason for problem in trace.problems)


def test_events_become_columns(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::mm", 1.0, 5.0),
        event("cuda_runtime", "cudaLaunchKernel", 2.0, 1.0, tid=99, correlation=5),
        kernel("gemm", 10.001, 2.5, correlation=5, grid=[4, 1, 1], block=[32, 1, 1]),
        event("gpu_memcpy", "Memcpy HtoD", 4.0, 1.0, tid=7, device=0, stream=7, correlation=6, bytes=832),
        event("gpu_memset", "Memset", 5.0, 1.0, tid=7, device=0, stream=7, correlation=7, bytes=0),
        event("user_annotation", "ProfilerStep#3", 0.0, 20.0, tid=99),
        event("gpu_user_annotation", "ProfilerStep#3", 4.0, 9.0, tid=7),
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 30.0},
        {"name": "process_name", "ph": "M", "pid": "Spans", "tid": -1, "ts": 0, "args": {"name": "python"}},
    ]
    header = {"baseTimeNanoseconds": BASE, "distributedInfo": {"backend": "nccl", "rank": 2, "world_size": 4}}
    trace = kineto.read(write(tmp_path / "t.json", events, **header))
    assert times(trace) == [(4000, 5000), (5000, 6000), (10001, 10001 + 2500)]
    assert trace.gpu.kind.tolist() == [Kind.COPY, Kind.MEMSET, Kind.COMPUTE]
    assert trace.gpu.bytes.tolist() == [832, 0, ABSENT]  # a measured 0 stays 0
    assert trace.gpu.correlation.tolist() == [6, 7, 5]
    assert trace.host.role.tolist() == [RangeRole.STEP, RangeRole.LAUNCH]
    assert trace.host.lane.tolist() == [99, 99]
    assert len(trace.gpu_ranges) == 1
    assert (trace.rank, trace.rank_basis, trace.world_size, trace.epoch_ns) == (2, "distributedInfo", 4, BASE)
    assert trace.problems == ()


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "plain.txt"])
def test_the_name_does_not_matter(tmp_path: Path, name: str) -> None:
    trace = kineto.read(write(tmp_path / name, [kernel("gemm", 1.0, 2.0)]))
    assert times(trace) == [(1000, 3000)]


def test_several_gzip_members(tmp_path: Path) -> None:
    data = text([kernel("gemm", 1.0, 2.0), kernel("gemm", 5.0, 2.0)]).encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(data[:200]) + gzip.compress(data[200:]))
    trace = kineto.read(path)
    assert len(trace.gpu) == 2
    assert trace.problems == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 7_900_000_000_000_000), st.integers(0, 10**12)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0, 1_700_000_000_000_000_000]),
)
def test_every_nanosecond_is_kept(spans: list[tuple[int, int]], epoch: int) -> None:
    """Also where µs since the epoch with decimals do not fit a double."""
    chunk = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k",'
        f'"ts":{Decimal(start + epoch) / 1000:f},"dur":{Decimal(dur) / 1000:f}}}'
        for start, dur in spans
    )
    columns = Columns()
    assert add_chunk(columns, chunk.encode(), len(chunk)) is None
    flush(columns)
    (gpu,) = columns.gpu
    assert gpu.start_ns.tolist() == [start + epoch for start, _ in spans]
    assert (gpu.end_ns - gpu.start_ns).tolist() == [dur for _, dur in spans]


def test_epoch_of_old_traces_is_in_their_times(tmp_path: Path) -> None:
    trace = kineto.read(write(tmp_path / "t.json", [kernel("gemm", 1694128201428473, 8)]))
    assert times(trace) == [(1694128201428473000, 1694128201428481000)]
    assert trace.epoch_ns == 0
    assert kineto.read(write(tmp_path / "u.json", [kernel("gemm", 5, 8)])).epoch_ns is None


def test_operators_that_are_used_are_not_skipped(tmp_path: Path) -> None:
    """Old traces hold loader, step and collective ranges as operators, among thousands that are not used."""
    used = ["nccl:all_reduce", "enumerate(DataLoader)#_Iter.__next__", "ProfilerStep#5"]
    names = ["aten::mm", *used, "aten::add", "aten::mul"]
    events = [event("cpu_op", name, float(i), 0.5) for i, name in enumerate(names)]
    events += [{"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1.0, "cat": "ac2g", "name": "ac2g"}] * 3
    events += [kernel("gemm", 9.0, -1.0), kernel("gemm", 9.0, 1.0)]
    trace = kineto.read(write(tmp_path / "t.json", events))
    assert [trace.names[code] for code in trace.host.name.tolist()] == used
    assert trace.host.role.tolist() == [RangeRole.COLLECTIVE, RangeRole.LOADER, RangeRole.STEP]
    assert f"1 of {6 + 3 + 2} events with a negative duration" in reasons(trace)


def test_collective_metadata(tmp_path: Path) -> None:
    known = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 400,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Seq": 17,
    }
    events = [
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 20.0, 1.0),
        kernel("gemm", 5.0, 1.0),
        kernel("ncclDevKernel_AllGather_RING_LL(x)", 10.0, 1.0, **known),
    ]
    trace = kineto.read(write(tmp_path / "rank0.json", events))
    c = trace.collectives
    assert c.event.tolist() == [1, 2]
    assert [trace.names[code] for code in c.op.tolist()] == ["all_gather", "all_reduce"]
    assert trace.names[int(c.group[0])] == "3"
    assert (c.group[1], c.sequence.tolist()) == (ABSENT, [17, ABSENT])
    assert (c.bytes_in.tolist(), c.bytes_out.tolist()) == ([200, ABSENT], [800, ABSENT])


def test_kernels_of_a_collective_range_are_communication_where_none_has_the_name(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "nccl:all_reduce", 10.0, 10.0, tid=1),
        event("cuda_runtime", "cudaLaunchKernel", 12.0, 1.0, tid=1, correlation=5),
        event("cuda_runtime", "cudaLaunchKernel", 25.0, 1.0, tid=1, correlation=6),
        kernel("mystery", 30.0, 5.0, correlation=5),
        kernel("gemm", 40.0, 5.0, correlation=6),
    ]
    trace = kineto.read(write(tmp_path / "t.json", events))
    assert trace.gpu.kind.tolist() == [Kind.COMMUNICATION, Kind.COMPUTE]
    assert "1 kernel counts as communication, because a collective" in trace.notes[0]
    events.append(kernel("ncclDevKernel_AllReduce", 50.0, 5.0))
    trace = kineto.read(write(tmp_path / "t.json", events))
    assert trace.gpu.kind.tolist() == [Kind.COMPUTE, Kind.COMPUTE, Kind.COMMUNICATION]


@pytest.mark.parametrize(
    ("name", "header", "rank"),
    [
        ("rank3.pt.trace.json", {}, 3),
        ("ddp_bucketed_rank_1_trace.json", {}, 1),
        ("worker5.pt.trace.json", {}, 5),
        ("trace.json", {}, None),
        ("rank1_of_rank4.json", {}, None),
        ("rank3.json", {"distributedInfo": {"rank": 0}}, 0),
        ("data_rank1/rank0.json", {}, 0),
        ("data_rank1/host.json", {}, None),
    ],
)
def test_ranks(tmp_path: Path, name: str, header: dict[str, object], rank: int | None) -> None:
    trace = kineto.read(write(tmp_path / name, [kernel("gemm", 1.0, 1.0)], **header))
    assert trace.rank == rank
    assert bool(trace.notes) == (name == "rank3.json")


def test_odd_values(tmp_path: Path) -> None:
    events = [
        kernel("gemm", 1.0, 1.0, stream=140234567890123456),
        event("kernel", "no arguments", 2.0, 1.0, tid="stream 7"),
        {"ph": "X", "cat": "kernel", "name": "no duration", "ts": 3.0, "pid": "", "tid": 7},
        kernel("negative", 4.0, -1.0),
        kernel("zero", 5.0, 0.0),
        event("kernel", "odd", 6.0, 1.0, tid=7, grid="none", bytes="many", device=1.5),
        kernel("overlaps", 1.5, 4.0, stream=140234567890123456),
    ]
    trace = kineto.read(write(tmp_path / "t.json", events))
    assert [trace.names[code] for code in trace.gpu.name.tolist()] == [
        "gemm",
        "overlaps",
        "no arguments",
        "zero",
        "odd",
    ]
    assert trace.gpu.stream.tolist() == [140234567890123456, 140234567890123456, ABSENT, 7, 7]
    assert "1 of 7 events with a negative duration" in reasons(trace)
    assert "1 of 7 events without a start or a duration" in reasons(trace)


def test_arguments_that_do_not_fit_cost_only_themselves() -> None:
    """Not the other events of the chunk, nor the digits of a time that a double cannot hold."""
    event = '{"ph":"X","cat":"kernel","name":"k","ts":1700000000000000.123,"dur":0.5,"tid":3,"args":%s}'
    columns = Columns()
    chunk = ",".join(event % arguments for arguments in ('{"grid":"none","stream":9}', '{"stream":9}', "7"))
    chunk += ',{"ph":"X","cat":["kernel"],"ts":1,"dur":1}'
    add_chunk(columns, chunk.encode(), len(chunk))
    flush(columns)
    (gpu,) = columns.gpu
    assert gpu.start_ns.tolist() == [1700000000000000123] * 3
    assert (gpu.end_ns - gpu.start_ns).tolist() == [500] * 3
    assert gpu.stream.tolist() == [9, 9, 3]
    assert columns.faults == {"not valid JSON": 1}


@pytest.mark.parametrize(
    "value",
    ["inf", "-inf", "nan", "-nan(ind)", "1.#INF", "Infinity", "NaN", ".5", "5.", "+5", "0x1f", "True"],
)
def test_a_value_that_is_no_json_costs_nothing_but_itself(tmp_path: Path, value: str) -> None:
    path = write(
        tmp_path / "t.json", [kernel("a", 1.0, 1.0, correlation=4, occupancy="@"), kernel("b", 2.0, 1.0)]
    )
    path.write_text(path.read_text().replace('"@"', value))
    trace = kineto.read(path)
    assert times(trace) == [(1000, 2000), (2000, 3000)]
    assert trace.gpu.correlation.tolist() == [4, 0]
    assert trace.problems == ()


@pytest.mark.parametrize(
    ("value", "start_ns"), [(".5", 500), ("0x10", 16_000), ('"7.25"', 7250), ("+3", 3000)]
)
def test_times_in_other_forms_are_read(tmp_path: Path, value: str, start_ns: int) -> None:
    path = write(tmp_path / "t.json", [kernel("a (inf, nan)", "@", 1.0)])
    path.write_text(path.read_text().replace('"@"', value))
    trace = kineto.read(path)
    assert times(trace) == [(start_ns, start_ns + 1000)]
    assert trace.names[int(trace.gpu.name[0])] == "a (inf, nan)"  # text in strings stays


def test_a_time_that_is_not_finite_is_a_missing_time(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("a", "@", 1.0), kernel("b", 2.0, 1.0)])
    path.write_text(path.read_text().replace('"@"', "nan"))
    trace = kineto.read(path)
    assert times(trace) == [(2000, 3000)]
    assert "1 of 2 events without a start or a duration" in reasons(trace)


def test_large_times_in_quotes_keep_their_nanoseconds(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("a", "1700000000000000.123", "0.5")])
    assert times(kineto.read(path)) == [(1700000000000000123, 1700000000000000623)]


@pytest.mark.parametrize("platform", ["cuda", "hip", "xpu", "mtia", "privateuse1"])
def test_calls_of_every_platform_are_launches(tmp_path: Path, platform: str) -> None:
    call = event(f"{platform}_runtime", "urEnqueueKernelLaunch", 1.0, 1.0, correlation=5)
    trace = kineto.read(write(tmp_path / "t.json", [call, kernel("gemm", 4.0, 1.0, correlation=5)]))
    assert trace.host.role.tolist() == [RangeRole.LAUNCH]


def test_a_header_of_many_mib_is_read(tmp_path: Path) -> None:
    groups = [{"pg_name": str(number), "ranks": list(range(60_000))} for number in range(14)]
    info = {"rank": 2, "world_size": 60_000, "pg_config": groups}
    path = write(tmp_path / "t.json", [kernel("a", 1.0, 1.0)], distributedInfo=info)
    assert path.stat().st_size > 5 << 20
    assert detect(path) == "kineto"
    trace = kineto.read(path)
    assert (trace.rank, times(trace)) == (2, [(1000, 2000)])


def test_unescaped_quotes_are_repaired(tmp_path: Path) -> None:
    events = [kernel("before", 1.0, 1.0), kernel("QUOTES", 2.0, 1.0), kernel("after", 3.0, 1.0)]
    path = write(tmp_path / "t.json", events)
    path.write_text(path.read_text().replace("QUOTES", 'void f<"x">(\\d "y")'))
    trace = kineto.read(path)
    assert [trace.names[code] for code in trace.gpu.name.tolist()] == [
        "before",
        'void f<"x">(\\d "y")',
        "after",
    ]
    assert "1 of 3 events with unescaped quotes" in reasons(trace)


def test_an_event_that_is_no_json_costs_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("a", 1.0, 1.0), kernel("b", 2.0, 1.0), kernel("c", 3.0, 1.0)])
    path.write_text(path.read_text().replace('"ts": 2.0', '"ts" 2.0'))
    trace = kineto.read(path)
    assert times(trace) == [(1000, 2000), (3000, 4000)]
    assert "not valid JSON" in reasons(trace)


def test_truncated_files_give_what_they_hold(tmp_path: Path) -> None:
    whole = text([kernel("k", float(i), 0.5) for i in range(50)], distributedInfo={"rank": 1}).encode()
    for cut in range(whole.index(b"traceEvents") + 20, whole.index(b"traceName") - 10, 97):
        path = tmp_path / "t.json"
        path.write_bytes(whole[:cut])
        trace = kineto.read(path)
        assert len(trace.gpu) == whole[:cut].count(b"\n  }")
        assert trace.rank == 1
        assert "ends inside traceEvents" in reasons(trace)


def test_files_that_cannot_be_read_do_not_hold_up_the_next_ones(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.json.gz" for rank in range(6)]
    for rank in (0, 4):
        write(paths[rank], [kernel(f"gemm{rank}", float(n), 0.5) for n in range(500)])
    # None of the others is read to its end: no array of events in more text than is looked at, no gzip data
    # behind the first bytes, no file, a folder.
    paths[1].write_bytes(gzip.compress(b" " * 12_000_000))
    paths[2].write_bytes(gzip.compress(b"x")[:10] + bytes(20_000))
    paths[5].mkdir()
    found = kineto.read_many(paths, workers=1)
    assert [len(trace.gpu) if isinstance(trace, Trace) else 0 for trace in found] == [500, 0, 0, 0, 500, 0]
    said = [error.message for error in found if isinstance(error, ArtefactError)]
    assert [message.split(": ")[0] for message in said] == [str(paths[place]) for place in (1, 2, 3, 5)]
    assert "no traceEvents array" in said[0]
    assert "gzip" in said[1]
    assert said[2:] == [f"{paths[3]}: No such file or directory", f"{paths[5]}: Is a directory"]
    assert not [thread for thread in threading.enumerate() if "_unpack" in thread.name]


def test_truncated_gzip(tmp_path: Path) -> None:
    events = [kernel(f"k{i * i}", float(i), 0.5) for i in range(2000)]
    packed = gzip.compress(text(events).encode())
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = kineto.read(path)
    assert 0 < len(trace.gpu) < 2000
    assert "the gzip stream ends early" in reasons(trace)
    path.write_bytes(packed[:1000] + b"\0" * 50 + packed[1050:])
    trace_or_error = kineto.read_many([path])[0]
    assert "gzip" in (
        str(trace_or_error) if isinstance(trace_or_error, ArtefactError) else reasons(trace_or_error)
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"{}", "no traceEvents"),
        (b"\x00\x01\x02" * 50, "no traceEvents"),
        (b'{"traceEvents": 7}', "no traceEvents"),
        (gzip.compress(b"")[:5], "gzip"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=said) as caught:
        kineto.read(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="No such file"):
        kineto.read(tmp_path / "none.json")


@pytest.mark.parametrize("content", ['{"traceEvents": []}', "[]"])
def test_an_empty_trace_is_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    trace = kineto.read(path)
    assert (len(trace.gpu), trace.problems) == (0, ())


def test_a_bare_array_of_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 2}]')
    assert times(kineto.read(path)) == [(1000, 3000)]


def test_impossible_times_are_named(tmp_path: Path) -> None:
    events = [kernel("good", 1.0, 1.0), kernel("bad", 10**30, 1.0), kernel("worse", 1e300, 1.0)]
    trace = kineto.read(write(tmp_path / "t.json", events))
    assert times(trace) == [(1000, 2000)]
    assert "2 of 3 events with an impossible time" in reasons(trace)


def test_many_blocks_and_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [kernel(f"k{i % 7}", i * 2.0, 1.25, correlation=i) for i in range(5000)]
    path = write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE)
    once = kineto.read(path)
    monkeypatch.setattr(kineto, "worth_processes", lambda: 1000)
    monkeypatch.setattr(kineto, "_RANGE_BYTES", 1000)
    split, again = kineto.read_many([path, path], workers=2)
    for trace in (split, again):
        assert isinstance(trace, Trace)
        assert times(trace) == times(once)
        assert trace.gpu.name.tolist() == once.gpu.name.tolist()
        assert trace.gpu.correlation.tolist() == once.gpu.correlation.tolist()
        assert (trace.epoch_ns, trace.problems) == (BASE, ())
