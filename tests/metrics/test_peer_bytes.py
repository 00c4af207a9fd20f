"""What the ranks of a group send to each other by all-to-all, per step."""

from __future__ import annotations

import numpy as np
import pytest

from aorta.artefacts.events import ABSENT, build
from aorta.artefacts.mesh import MeshGroup
from aorta.intervals import as_intervals
from aorta.metrics.peer_bytes import with_peers
from aorta.metrics.trace_steps import StepWindows
from aorta.metrics.trace_work import CallTable, GpuWork

NAMES = ("all_to_all", "all_reduce", "mesh_ep:1", "mesh_dp:2", "100 300", "0 0", "40 60", "1 2 3", "1 x", "")
Row = tuple[int, str, str, str | None]
"""Step, group, operation, and what is sent."""
STEPS = (5, 6)


def work(*rows: Row) -> GpuWork:
    codes = {name: code for code, name in enumerate(NAMES)}
    calls = build(
        CallTable,
        len(rows),
        step=[row[0] for row in rows],
        group=[codes[row[1]] for row in rows],
        op=[codes[row[2]] for row in rows],
        sent=[ABSENT if row[3] is None else codes[row[3]] for row in rows],
    )
    nothing = as_intervals([])
    return GpuWork(
        steps=StepWindows(np.array(STEPS), as_intervals([(0, 10), (10, 20)]), "made"),
        compute=nothing, communication=nothing, data=nothing, names=NAMES, calls=calls,
        seen=frozenset(), numbered=frozenset(), edge_calls=0,
    )  # fmt: skip


def matrix(by_rank: dict[int, GpuWork], name: str = "mesh_ep:1") -> list[list[float]] | None:
    group = MeshGroup(name=name, dimension="expert", ranks=[2, 4])
    return with_peers([group], by_rank, STEPS)[0].bytes_to


def call(sent: str | None, step: int = 5, group: str = "mesh_ep:1", op: str = "all_to_all") -> Row:
    return step, group, op, sent


SENT = work(call("100 300"), call("40 60", 6))


def test_a_row_is_the_mean_over_the_steps() -> None:
    """Rank 2 calls twice in step 5 and once in step 6; rank 4 calls in step 5 alone."""
    one = work(call("100 300"), call("100 300"), call("40 60", 6), call("40 60", 7))
    two = work(call("40 60"))
    assert matrix({2: one, 4: two}) == [[(2 * 100 + 40) / 2, (2 * 300 + 60) / 2], [40 / 2, 60 / 2]]


def test_sending_nothing_is_zero_and_not_to_send_is_not_known() -> None:
    assert matrix({2: SENT, 4: work(call("0 0"))}) == [[70.0, 180.0], [0.0, 0.0]]
    assert matrix({2: SENT, 4: work()}) is None


@pytest.mark.parametrize(
    "other",
    [
        [call("100 300"), call(None, 6)],
        [call("1 2 3")],
        [call("1 x")],
        [call("100 300", group="mesh_dp:2")],
        [call("100 300", op="all_reduce")],
        [call("100 300", 7)],
    ],
)
def test_one_size_that_is_not_known_leaves_all_unknown(other: list[Row]) -> None:
    assert matrix({2: SENT, 4: work(*other)}) is None


def test_a_rank_without_a_trace_leaves_all_unknown() -> None:
    assert matrix({2: SENT}) is None


def test_calls_without_a_group_are_of_the_group_without_a_name() -> None:
    one = work(call("100 300", group=""))
    assert matrix({2: one, 4: one}, "not named") == [[50.0, 150.0]] * 2
    assert matrix({2: one, 4: one}) is None


def test_other_operations_of_the_group_do_not_count() -> None:
    one = work(call("40 60"), call(None, op="all_reduce"), call(None, group="mesh_dp:2"))
    assert matrix({2: one, 4: one}) == [[20.0, 30.0]] * 2
