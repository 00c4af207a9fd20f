"""Dumps in the shape that NCCL's recorder had on two GPUs: what they tell of time, starts and ends."""

from __future__ import annotations

import os
import pickle

import pytest

from aorta.diagnosis.hang import hang_of_recordings
from aorta.readers.flight import read
from aorta.readers.flight_folder import read_folder

SECOND = 1_000_000_000
BEGAN = 1_795_931_985 * SECOND
CALLS = 5


def entry(number, *, ended_ms=None, retired=True, started_ms=None, size=2048):
    """Call `number` was made after as many ms. Times of ends are when they were found."""
    at = None if ended_ms is None else BEGAN + int(ended_ms * 1e6)
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": BEGAN + number * 1_000_000,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "completed" if at else "started" if started_ms else "scheduled",
        "time_discovered_started_ns": BEGAN + int(started_ms * 1e6) if started_ms else None,
        "time_discovered_completed_ns": at,
        "retired": retired and at is not None,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def dump(entries):
    retired = sum(item["retired"] for item in entries)
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "comm_lib_version": "2.28.9",
        "pg_status": {
            "0": {
                "last_enqueued_collective": len(entries),
                "last_started_collective": -1,
                "last_completed_collective": retired,
            }
        },
        "entries": entries,
    }


def told(folder, ranks, *, late_s):
    """What the dumps say; their files were written `late_s` after the job began."""
    paths = []
    for rank, entries in enumerate(ranks):
        path = folder / f"dump_{rank}"
        path.write_bytes(pickle.dumps(dump(entries), protocol=2))
        os.utime(path, ns=(BEGAN + int(late_s * SECOND),) * 2)
        paths.append(path)
    hang = hang_of_recordings(read_folder(paths).recordings)
    return None if hang is None else (hang.kind, [item.rank for item in hang.ranks])


def ended(*, retired=True):
    return [entry(number, ended_ms=20, retired=retired) for number in range(1, CALLS + 1)]


@pytest.mark.parametrize("late_s", [0.03, 3600])
def test_an_end_that_the_dump_itself_found_says_that_the_job_moved(tmp_path, late_s):
    ahead = [*ended(retired=False), entry(CALLS + 1), entry(CALLS + 2)]
    assert told(tmp_path, [ahead, ended(retired=False)], late_s=late_s) is None


@pytest.mark.parametrize("late_s", [0.03, 3600])
def test_the_dump_of_one_rank_dates_the_others(tmp_path, late_s):
    ahead = [*ended(), entry(CALLS + 1)]
    assert told(tmp_path, [ahead, ended(retired=False)], late_s=late_s) is None


def test_a_dump_long_after_the_open_call_is_a_standstill_whoever_dates_it(tmp_path):
    # A watchdog that does not run retires nothing: the end was found 600 s after the calls.
    late = [entry(number, ended_ms=600_000, retired=False) for number in range(1, CALLS + 1)]
    assert told(tmp_path, [[*ended(), entry(CALLS + 1)], late], late_s=601) == ("host_stuck", [1])


@pytest.mark.parametrize(("late_s", "said"), [(10, ("host_stuck", [1])), (1, None)])
def test_only_retired_calls_leave_the_time_of_the_file(tmp_path, late_s, said):
    assert told(tmp_path, [[*ended(), entry(CALLS + 1)], ended()], late_s=late_s) == said


def test_a_rank_that_died_early_does_not_make_the_waiting_ones_young(tmp_path):
    early = tmp_path / "dump_1"
    early.write_bytes(pickle.dumps(dump(ended(retired=False)), protocol=2))
    os.utime(early, ns=(BEGAN + SECOND // 50,) * 2)
    late = tmp_path / "dump_0"
    late.write_bytes(pickle.dumps(dump([*ended(), entry(CALLS + 1)]), protocol=2))
    os.utime(late, ns=(BEGAN + 600 * SECOND,) * 2)
    hang = hang_of_recordings(read_folder([late, early]).recordings)
    assert (hang.kind, [item.rank for item in hang.ranks]) == ("host_stuck", [1])


@pytest.mark.parametrize(("started_ms", "said"), [(7, ("gpu_stuck", [1])), (None, ("transfer_stuck", []))])
def test_whose_gpu_is_stuck_is_known_only_where_starts_are_recorded(tmp_path, started_ms, said):
    waits = [*ended(), entry(CALLS + 1, started_ms=started_ms), entry(CALLS + 2)]
    behind = [*ended(), entry(CALLS + 1), entry(CALLS + 2)]
    assert told(tmp_path, [waits, behind], late_s=10) == said


def test_one_file_alone_has_its_own_time(tmp_path):
    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps(dump(ended(retired=False))))
    assert read(path).taken_ns == BEGAN + 20_000_000
    path.write_bytes(pickle.dumps(dump(ended())))
    os.utime(path, ns=(BEGAN + SECOND,) * 2)
    assert read(path).taken_ns == BEGAN + SECOND
