"""Dumps of the flight recorder: real ones of torch, hostile ones, and the forms of several versions."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from aorta.errors import ArtefactError
from aorta.readers.flight import decode, rank_in_name, read
from aorta.readers.flight_files import find, is_recording

ENTRY = {
    "record_id": 7,
    "pg_id": 1,
    "process_group": ("5", "TENSOR_MODEL_PARALLEL_GROUP"),
    "collective_seq_id": 12,
    "p2p_seq_id": 0,
    "is_p2p": False,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 100,
    "input_sizes": [[4, 2]],
    "input_dtypes": ["Float"],
    "state": "scheduled",
    "time_discovered_completed_ns": None,
    "frames": [{"name": "step", "filename": "train.py", "line": 9}],
}
CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "5": {"name": "5", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[2, 3]"},
}
STATUS = {
    "0": {"last_enqueued_collective": 4, "last_started_collective": -1, "last_completed_collective": 4},
    "1": {"last_enqueued_collective": 12, "last_started_collective": -1, "last_completed_collective": 11},
}
DUMP = {"version": "2.9", "pg_config": CONFIG, "pg_status": STATUS, "entries": [ENTRY]}


@pytest.mark.parametrize("encode", [pickle.dumps, lambda value: json.dumps(value).encode()])
def test_a_dump_as_pickle_and_as_json(encode):
    data = encode(DUMP)
    assert is_recording(data[:4096])
    found = decode(data, "d", 3)
    (call,) = found.pending()
    assert (call.group, call.number, call.operation, call.sizes) == ("5", 12, "all_reduce", ((4, 2),))
    assert call.where == (("step", "train.py", 9),)
    assert found.groups["5"].ranks == (2, 3)
    assert dict(found.enqueued) == {"0": 4, "5": 12}
    assert dict(found.completed) == {"0": 4, "5": 11}


def test_a_send_names_its_peer_by_its_rank_in_the_job():
    sent = ENTRY | {"profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 3}
    found = decode(pickle.dumps(DUMP | {"entries": [sent]}), "d", 2)
    (call,) = found.calls
    assert (call.operation, call.peer, call.number) == ("send", 3, 3)
    # The status counts sends and collectives together, so that it says nothing of either.
    assert "5" not in found.enqueued


def test_the_rank_follows_from_the_groups_where_no_name_says_it():
    config = CONFIG | {"6": {"name": "6", "desc": "", "ranks": "[1, 2]"}}
    assert decode(pickle.dumps(DUMP | {"pg_config": config}), "d").rank == 2
    assert decode(pickle.dumps(DUMP), "d").rank is None  # 2 or 3


@pytest.mark.parametrize(
    ("name", "rank"),
    [("_dump_14", 14), ("nccl_trace_rank_3", 3), ("7.json", 7), ("trace_2.pkl", 2), ("notes.txt", None)],
)
def test_the_rank_in_a_name(name, rank):
    assert rank_in_name(name) == rank


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(DUMP | {"entries": [Hostile()]}))
    with pytest.raises(ArtefactError, match=r"_dump_0.*is not plain data"):
        read(tmp_path / "_dump_0")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        pickle.dumps(DUMP)[:-40],
        pickle.dumps([1]),
        b'{"entries": 3}',
        b"\x80\x04\x95" + b"\xff" * 60,
    ],
)
def test_what_is_no_dump_is_refused_by_name(data):
    with pytest.raises(ArtefactError, match="the-source"):
        decode(data, "the-source")


def test_entries_that_are_nothing_cost_themselves_only():
    found = decode(pickle.dumps(DUMP | {"entries": [3, {}, {"process_group": ("5", "")}, ENTRY]}), "d", 3)
    assert len(found.calls) == 1


@pytest.mark.parametrize("indent", [None, 2])
def test_a_kineto_trace_with_the_groups_of_the_job_is_no_dump(tmp_path: Path, indent: int | None) -> None:
    info = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    trace = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": [{"ph": "X", "name": "entries"}]}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(trace, indent=indent))
    assert find([path]) == []


def test_json_of_torch_has_its_keys_in_order_and_numbers_as_text():
    entries = [ENTRY | {"record_id": number, "collective_seq_id": number + 1} for number in range(900)]
    text = {name: str(value) for name, value in STATUS["1"].items()}
    data = json.dumps({"entries": entries, "pg_config": CONFIG, "pg_status": {"1": text}, "version": "2.10"})
    assert data.index("pg_config") > 1 << 16
    assert is_recording(data.encode()[: 1 << 16])
    found = decode(data.encode(), "d", 3)
    assert (found.enqueued["5"], found.completed["5"]) == (900, 11)
    assert [call.number for call in found.pending()] == list(range(12, 901))


@pytest.mark.parametrize(("ended", "open_calls"), [(0, 1), (None, 1), (200, 0)])
def test_a_time_of_0_is_no_time(ended, open_calls):
    entry = ENTRY | {"time_discovered_completed_ns": ended}
    assert len(decode(json.dumps(DUMP | {"entries": [entry]}).encode(), "d", 3).pending()) == open_calls


def test_the_groups_say_the_rank_before_the_name_does():
    config = CONFIG | {"6": {"name": "6", "desc": "", "ranks": "[1, 2]"}}
    assert decode(pickle.dumps(DUMP | {"pg_config": config}), "node1/dump_0", 0).rank == 2
    # A number that is no rank of the job, such as a process id.
    assert decode(pickle.dumps(DUMP), "dump_4711", 4711).rank is None
    assert decode(pickle.dumps(DUMP | {"rank": 3}), "dump_4711", 4711).rank == 3


@pytest.mark.parametrize(("state", "open_calls"), [("completed", 0), ("started", 3), ("scheduled", 3)])
def test_the_sends_of_a_batch_end_with_the_entry_that_follows_them(state, open_calls):
    parts = [
        ENTRY | {"record_id": number, "profiling_name": f"nccl:{name}", "is_p2p": True, "p2p_seq_id": 4}
        for number, name in enumerate(("send 0->1", "recv 0<-1", "coalesced"))
    ]
    parts[2]["state"] = state
    found = decode(pickle.dumps(DUMP | {"entries": parts}), "d", 2)
    assert len(found.pending()) == open_calls


def test_an_entry_that_was_retired_has_ended():
    for retired, open_calls in ((True, 0), (False, 1)):
        found = decode(pickle.dumps(DUMP | {"entries": [ENTRY | {"retired": retired}]}), "d", 3)
        assert len(found.pending()) == open_calls
