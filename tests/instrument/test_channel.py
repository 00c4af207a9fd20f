"""The pipes to the process that writes records, and what becomes of them when one side ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.instrument import channel as module
from aorta.instrument.assemble import record_of, summary_of
from aorta.instrument.channel import RecordChannel
from aorta.instrument.wire import Frames, frame
from tests.support.wire import CONSTANTS, measured


def steps_in(path: Path) -> list[int]:
    return [msgspec.json.decode(line)["global_step"] for line in path.read_bytes().splitlines()]


def test_a_record_lies_on_every_clock() -> None:
    record = record_of(CONSTANTS, measured())
    assert (record.mono_start_ns, record.mono_end_ns) == (10, 110)
    assert (record.wall_start_ns, record.wall_end_ns, record.boot_start_ns) == (5010, 5110, 80)
    assert record.profile is not None
    assert [(item["name"], item["time_ms"]) for item in record.profile.markers] == [
        ("host_step_start", -0.00001),
        ("host_step_end", 0.00002),
    ]
    parts = record.breakdown
    assert parts is not None
    assert (parts.compute_ns, parts.exposed_comm_ns, parts.host_ns, parts.hidden_comm_ns) == (60, 30, 10, 20)
    assert (record.rank, record.device_uuid, record.memory_peak_bytes, record.loss) == (3, "GPU-1", 0, 0.0)
    assert (record.memory_reserved_bytes, record.alloc_retries, record.alloc_ooms) == (4, 2, 1)


def test_without_a_gpu_nothing_is_said_of_its_allocator() -> None:
    record = record_of(CONSTANTS, measured(memory=None))
    assert (record.memory_peak_bytes, record.memory_reserved_bytes) == (None, None)
    assert (record.alloc_retries, record.alloc_ooms) == (None, None)


def test_compute_that_stood_still_is_cut() -> None:
    record = record_of(CONSTANTS, measured(waits=[("allreduce", 40, 100)]))
    assert record.breakdown is not None
    # From 40 until the all-reduce ended at 100; forward had run from 10 to 70.
    assert record.breakdown.compute_ns == 40 - 10


def test_what_comes_after_the_end_goes_into_no_other_file(tmp_path: Path) -> None:
    channel = RecordChannel(tmp_path / "records", CONSTANTS)
    channel.close()
    others = [(tmp_path / str(index)).open("w+b", buffering=0) for index in range(8)]  # in their place
    channel.send([measured()])
    assert channel.received() == []
    channel.close()
    for other in others:
        assert other.seek(0, os.SEEK_END) == 0
        other.close()
    assert (tmp_path / "records").read_bytes() == b""


def test_a_summary_of_an_unobserved_step_has_no_parts() -> None:
    for change in ({"communication_observed": False}, {"detailed": False, "pieces": [], "data_wait_ns": 7}):
        blind = summary_of(record_of(CONSTANTS, measured(**change)))
        assert (blind.compute_ns, blind.exposed_comm_ns) == (None, None)
        assert blind.data_wait_ns == change.get("data_wait_ns", 0)  # the host's own time, in any case
    seen = summary_of(record_of(CONSTANTS, measured()))
    assert (seen.compute_ns, seen.exposed_comm_ns, seen.data_wait_ns) == (60, 30, 0)


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 9), min_size=1))
def test_frames_do_not_depend_on_how_they_arrive(contents: list[bytes], sizes: list[int]) -> None:
    data, found, frames, turn = b"".join(frame(content) for content in contents), [], Frames(), 0
    while data:
        size = sizes[turn % len(sizes)]
        found += frames.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert found == contents


def test_what_was_sent_is_in_the_file_when_settled(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    path.parent.mkdir()
    path.write_text("old\n")
    channel = RecordChannel(path, CONSTANTS)
    for step in range(3):
        channel.send([measured(step)])
    channel.settle()
    assert steps_in(path) == [0, 1, 2]
    assert [summary.global_step for summary in channel.received()] == [0, 1, 2]
    channel.send([measured(3)])
    channel.close()
    assert steps_in(path) == [0, 1, 2, 3]
    assert channel._process.returncode == 0


def test_a_writer_that_was_killed_ends_the_recording_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records.jsonl"
    channel = RecordChannel(path, CONSTANTS)
    channel.send([measured(0)])
    channel.settle()
    channel._process.kill()
    channel._process.wait()
    with caplog.at_level(logging.ERROR):
        for step in (1, 2):
            channel.send([measured(step)])
        channel.close()
    assert [record.message for record in caplog.records] == [
        f"{path}: the process that writes this file ended with exit code -9; "
        "no more step records from this rank"
    ]
    assert steps_in(path) == [0]


def test_a_writer_that_stands_still_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PIPE_BYTES", 4096)
    channel = RecordChannel(tmp_path / "late.jsonl", CONSTANTS)
    channel._process.send_signal(signal.SIGSTOP)
    for step in range(100):
        channel.send([measured(step)])  # more than the pipe holds: nobody waits for it
    channel._process.send_signal(signal.SIGCONT)
    channel.close()
    assert steps_in(tmp_path / "late.jsonl") == list(range(100))
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "WAKE_MS", 50)
    stopped = RecordChannel(tmp_path / "never.jsonl", CONSTANTS)
    stopped._process.send_signal(signal.SIGSTOP)
    with caplog.at_level(logging.ERROR):
        stopped.send([measured()])
        stopped.close()
    assert "no more step records from this rank" in caplog.text


def test_signals_that_end_a_rank_do_not_end_its_writer(tmp_path: Path) -> None:
    channel = RecordChannel(tmp_path / "records.jsonl", CONSTANTS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        channel._process.send_signal(number)
    channel.send([measured()])
    channel.close()
    assert steps_in(tmp_path / "records.jsonl") == [0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) & module._BLOCKED == set()


KILLED = """
import os, signal, sys, time
from pathlib import Path
from aorta.instrument.channel import RecordChannel
from tests.instrument.test_channel import CONSTANTS, measured
channel = RecordChannel(Path(sys.argv[1]), CONSTANTS)
if os.fork() == 0:
    time.sleep(60)  # like a loader process: it holds the pipe open
for step in range(200):
    channel.send([measured(step)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_rank_had_sent_is_written(tmp_path: Path) -> None:
    path, root = tmp_path / "records.jsonl", Path(__file__).parents[2]
    rank = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    try:
        assert rank.wait(60) == -signal.SIGKILL
        deadline = time.monotonic() + 30
        while len(path.read_bytes().splitlines()) < 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert steps_in(path) == list(range(200))
    finally:
        os.killpg(rank.pid, signal.SIGKILL)


def test_the_writer_needs_neither_torch_nor_arrays() -> None:
    check = "import sys, aorta.instrument.companion; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_stop_the_training(capfd: pytest.CaptureFixture[str]) -> None:
    channel = RecordChannel(Path("/dev/full"), CONSTANTS)
    for step in range(3):
        channel.send([measured(step)])
    channel.settle()
    assert [summary.global_step for summary in channel.received()] == [0, 1, 2]
    channel.close()
    assert channel._process.returncode == 0
    said = capfd.readouterr().err
    assert "/dev/full: No space left on device; step records are lost from step 0 on" in said
    assert "/dev/full: 3 records lost, steps 0 to 2; recording ends" in said
