"""Replays of small host lines; expectations are sums of ns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.hostline import Item, LineTable
from aorta.metrics.line_replay import LAUNCH_NS, ReplayChanges, lanes, lessened, replay
from tests.support.host_lines import launch, line


def step_ns(tables: dict[int, LineTable], changes: dict[int, ReplayChanges] | None = None) -> list[float]:
    found = replay(lanes(tables, {rank: ["g"] for rank in tables}, changes or {}))
    return [found.step_ns[rank] for rank in sorted(tables)]


def test_a_step_takes_what_the_slower_of_host_and_gpu_takes() -> None:
    host_bound = line([[launch(50_000, 10_000), launch(50_000, 10_000)]] * 2)
    gpu_bound = line([[launch(5_000, 40_000), launch(5_000, 40_000)]] * 2)
    assert step_ns({0: host_bound}) == [pytest.approx(50_000 + 50_000)]
    assert step_ns({0: gpu_bound}) == [pytest.approx(40_000 + 40_000, rel=0.01)]


def test_a_synchronisation_makes_the_host_wait_for_what_it_needs() -> None:
    sync = {"item": int(Item.SYNC), "work_ns": 1_000, "held_ns": 30_000, "behind_ns": 500, "needs": 1}
    waiting = line([[launch(10_000, 40_000), sync, launch(20_000, 1_000)]] * 2)
    # Work, the way to the GPU, the kernel, what lies behind it, and the work after it.
    expected = 10_000 + LAUNCH_NS + 40_000 + 500 + 20_000
    assert step_ns({0: waiting}) == [pytest.approx(expected, rel=0.01)]
    without = {0: ReplayChanges(unheld=np.ones(len(waiting), dtype=np.bool_))}
    assert step_ns({0: waiting}, without)[0] < expected


def test_a_collective_ends_when_the_last_rank_has_come() -> None:
    def rank(work: int, took: int) -> LineTable:
        return line([[launch(work, took, group=0, order=0)]] * 2)

    # Rank 0 waits for rank 1: its kernel is longer, the transfer is that of the last to come.
    tables = {0: rank(10_000, 85_000), 1: rank(90_000, 5_000)}
    assert step_ns(tables) == [pytest.approx(90_000, rel=0.05)] * 2
    faster = {1: ReplayChanges(work_ns=np.minimum(tables[1].work_ns, 30_000).astype(np.float64))}
    assert step_ns(tables, faster) == [pytest.approx(30_000, rel=0.05)] * 2


def test_a_collective_that_another_rank_never_calls_does_not_hang() -> None:
    alone = line([[launch(10_000, 5_000, group=0, order=0), launch(10_000, 5_000, group=0, order=1)]] * 2)
    other = line([[launch(10_000, 5_000, group=0, order=0)]] * 2)
    assert all(took > 0 for took in step_ns({0: alone, 1: other}))


def test_batches_come_no_faster_than_other_processes_make_them() -> None:
    wait = {"item": int(Item.LOADER), "held_ns": 60_000}
    table = line([[wait, launch(40_000, 1_000)]] * 2)
    # A batch per 100 µs was made; a faster host waits longer for the next.
    faster = {0: ReplayChanges(work_ns=table.work_ns * 0.25)}
    assert step_ns({0: table}) == [pytest.approx(100_000)]
    assert step_ns({0: table}, faster) == [pytest.approx(100_000)]


def test_weight_that_a_stretch_has_no_room_for_is_taken_from_the_next() -> None:
    table = line([[launch(10_000, 0), launch(10_000, 0), launch(10_000, 0)]])
    weight = np.array([0, 12_000, 3_000, 3_000, 0], dtype=np.float64)
    # A tenth of the first stretch stays; the rest of its weight shortens the second.
    assert lessened(table, weight).tolist() == [0, 1_000, 10_000 - 3_000 - 3_000, 7_000, 0]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20))
def test_less_work_never_makes_a_step_longer(work: list[tuple[int, int]]) -> None:
    table = line([[launch(host, gpu) for host, gpu in work]] * 2)
    shorter = {0: ReplayChanges(work_ns=table.work_ns / 2)}
    assert step_ns({0: table}, shorter)[0] <= step_ns({0: table})[0] * (1 + 1e-9) + 1
