"""Traces of two jobs, or of two times, are never averaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.readers.traces import TraceSet, read_traces
from tests.support.kineto import kernel, write

HOUR_NS = 3600 * 10**9
BASE = 1_790_000_000 * 10**9


def capture(folder: Path, rank: int, world: int, base: int) -> Path:
    events = [kernel("gemm", 10.0 * n, 5.0) for n in range(5)]
    info = {"rank": rank, "world_size": world}
    return write(
        folder / f"rank{rank}_of_{world}_{base}.json", events, distributedInfo=info, baseTimeNanoseconds=base
    )


def said(found: TraceSet) -> str:
    return " ".join(problem.reason for problem in found.problems)


def test_traces_of_jobs_of_two_sizes_are_told_apart(tmp_path: Path) -> None:
    for rank in range(4):
        capture(tmp_path, rank, 4, BASE)
    for rank in range(2):
        capture(tmp_path, rank, 2, BASE)
    found = read_traces([tmp_path])
    assert [(trace.rank, trace.world_size) for trace in found.traces] == [(rank, 4) for rank in range(4)]
    assert said(found).count("belongs to another job, with 2 ranks") == 2


@pytest.mark.parametrize(("apart", "ranks"), [(HOUR_NS, [1]), (0, [0, 1]), (30 * 10**9, [0, 1])])
def test_ranks_of_two_times_are_told_apart(tmp_path: Path, apart: int, ranks: list[int]) -> None:
    capture(tmp_path, 0, 2, BASE)
    capture(tmp_path, 1, 2, BASE + apart)
    found = read_traces([tmp_path])
    assert [trace.rank for trace in found.traces] == ranks
    assert ("recorded 3600 s apart" in said(found)) == (len(ranks) == 1)


def test_of_two_sessions_the_one_with_all_ranks_counts(tmp_path: Path) -> None:
    for rank in range(3):
        capture(tmp_path, rank, 3, BASE)
    capture(tmp_path, 0, 3, BASE + HOUR_NS)
    found = read_traces([tmp_path])
    assert [trace.epoch_ns for trace in found.traces] == [BASE] * 3
