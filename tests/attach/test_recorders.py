"""Flight recorders of running processes: by torch's worker server, and by files that a watchdog wrote."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import zlib

import pytest
from msgspec.structs import replace

from aorta.artefacts.attached import NodeView, ProcessView, RecorderDump, StackShare, decoded, encoded
from aorta.attach import recorders
from aorta.attach.processes import TorchProcess
from aorta.attach.recorders import recorder_of
from aorta.commands.attach import _answered
from tests.support.flight_jobs import Job

BODY = b'{"entries": []}'


def process(**environment):
    return TorchProcess(os.getpid(), 1, "python", {"RANK": "1"} | environment)


def served(folder, answer):
    """A worker server that answers once, and its socket."""
    server = socket.socket(socket.AF_UNIX)
    os.chdir(folder)
    server.bind("worker.sock")
    server.listen()
    asked = []

    def serve():
        link, _ = server.accept()
        asked.append(link.recv(4096))
        link.sendall(answer)
        link.close()

    threading.Thread(target=serve, daemon=True).start()
    return str(folder / "worker.sock"), asked


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + BODY, BODY),
        (b"HTTP/1.1 404 Not Found\r\n\r\nno such handler", None),
        (b"", None),
        (b"\x00\x01", None),
    ],
)
def test_the_worker_server_is_asked(tmp_path, monkeypatch, answer, data):
    monkeypatch.chdir(tmp_path)
    path, asked = served(tmp_path, answer)
    found = recorder_of(process(TORCH_WORKER_SERVER_SOCKET=path))
    assert (None if found is None else zlib.decompress(found.data)) == data
    assert asked[0].startswith(b"POST /handler/fr_trace_json ")


def test_a_socket_that_is_not_there_or_silent_gives_none(tmp_path, monkeypatch):
    assert recorder_of(process(TORCH_WORKER_SERVER_SOCKET=str(tmp_path / "gone" / "a.sock"))) is None
    monkeypatch.setattr(recorders, "_TIMEOUT_S", 0.1)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("silent.sock")
        silent.listen()
        assert recorder_of(process(TORCH_WORKER_SERVER_SOCKET=str(tmp_path / "silent.sock"))) is None


@pytest.mark.parametrize(("age_s", "read"), [(0, True), (10**8, False)])
def test_a_file_counts_if_this_process_can_have_written_it(tmp_path, age_s, read):
    prefix = tmp_path / "trace_rank_"
    (tmp_path / "trace_rank_1").write_bytes(BODY)
    at = time.time() - age_s
    os.utime(tmp_path / "trace_rank_1", (at, at))
    found = recorder_of(process(TORCH_FR_DUMP_TEMP_FILE=str(prefix)))
    assert (found is not None and zlib.decompress(found.data) == BODY) == read
    assert recorder_of(process(TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "other"))) is None
    assert recorder_of(process()) is None


def views(*, stopped, samples=60, late_s=60):
    """Three ranks whose stacks are all in one call, and their recorders."""
    made = Job(3, {}, [[{"group": "0", "name": "all_reduce"}] * 4] * 3)
    if stopped is not None:
        made.ranks[stopped].stops_at = 3
    dumps = made.run().dumps(form="json")
    wait = [("main", "/p/train.py", 3), ("all_reduce", "/s/torch/distributed/distributed_c10d.py", 7)]
    found = [
        ProcessView(
            pid=100 + rank, host="n1", command="python", rank=rank, world_size=3, parent=1, role="rank",
            stacks=[StackShare(frames=wait, samples=samples)], seconds=3.0, cpu_seconds=None,
            recorder=RecorderDump(data=zlib.compress(data), wall_ns=made.clock + late_s * 10**9),
        )
        for rank, data in dumps.items()
    ]  # fmt: skip
    return NodeView(host="n1", processes=found)


def test_recorders_tell_who_is_missing_where_all_stacks_are_alike():
    sent = decoded(encoded(views(stopped=1)))
    assert sent is not None
    found = _answered([sent], 3.0)
    assert (found.kind, found.ranks) == ("hang", [1])
    assert found.hang is not None
    assert (found.hang.kind, found.hang.waiting_ranks) == ("host_stuck", [0, 2])
    assert json.loads(encoded(sent).partition(":")[2])["host"] == "n1"


@pytest.mark.parametrize("late_s", [0, 60])
def test_recorders_without_an_open_call_change_nothing(late_s):
    assert _answered([views(stopped=None, late_s=late_s)], 3.0).kind == "no_cause_seen"


def test_a_recorder_that_cannot_be_read_changes_nothing():
    seen = views(stopped=1)
    torn = [
        replace(item, recorder=RecorderDump(data=data, wall_ns=1))
        for item, data in zip(
            seen.processes, (b"x", zlib.compress(b"\x80\x04"), zlib.compress(b"{")), strict=True
        )
    ]
    found = _answered([replace(seen, processes=torn)], 3.0)
    assert (found.kind, found.hang) == ("no_cause_seen", None)
