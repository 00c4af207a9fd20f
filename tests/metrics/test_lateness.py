"""Who is late, how often, since when; and whether it is a node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from aorta.artefacts.replayed import LatenessTable
from aorta.artefacts.steps import DecodedStep
from aorta.metrics.collectives import match_collectives
from aorta.metrics.lateness import lateness, pattern
from tests.support.steps import step

STEPS = 40
NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


def table(
    late: dict[int, Sequence[int]],
    *,
    by: int | dict[int, int] = 30,
    nodes: dict[int, str] | None = None,
    meet: Sequence[int] = range(STEPS),
) -> LatenessTable:
    """Four ranks that come to the step's collective at 20, or `by` ms later in the steps of `late`: all of
    them, or each rank by its own. Only the steps of `meet` have a collective.
    """
    nodes = nodes if nodes is not None else NODES
    records: dict[int, list[DecodedStep]] = {rank: [] for rank in range(4)}
    for number in range(STEPS):
        for rank, steps in records.items():
            delay = by if isinstance(by, int) else by.get(rank, 0)
            start, come = 100 * number, 20 + (delay if number in late.get(rank, ()) else 0)
            span = (start, start + 100)
            steps.append(
                step(
                    number,
                    span,
                    rank=rank,
                    compute=[(start, start + come)],
                    collectives=[(start + come, start + 90)] if number in meet else [],
                )
            )
    found = match_collectives(records, dict.fromkeys(records, "clock"))
    assert not isinstance(found, str)
    made = lateness(found, range(STEPS), 100.0, nodes)
    assert made is not None
    return made


def test_nobody_is_late_within_a_tenth_of_the_step() -> None:
    assert table({1: range(STEPS)}, by=10).ranks == []
    assert table({1: range(STEPS)}, by=10).scope == "none"
    assert len(table({1: range(STEPS)}, by=11).ranks) == 1


def test_a_rank_late_in_every_step_is_late_persistently() -> None:
    found = table({1: range(STEPS)})
    (row,) = found.ranks
    assert (row.rank, row.host, row.pattern, row.late_steps, row.since_step) == (1, "a", "persistent", 40, 0)
    assert row.late_ms == pytest.approx(30)
    assert found.scope == "rank"


def test_a_rank_late_since_a_step_says_since_which() -> None:
    (row,) = table({2: [3, *range(15, STEPS)]}).ranks
    assert (row.pattern, row.since_step, row.late_steps) == ("persistent", 15, 26)
    assert row.share_of_steps == pytest.approx(26 / 40)


def test_every_fourth_step_is_intermittent_and_a_single_step_one_off() -> None:
    (often,) = table({2: range(0, STEPS, 4)}).ranks
    assert (often.pattern, often.since_step, often.late_steps) == ("intermittent", 0, 10)
    (once,) = table({2: [17]}).ranks
    assert (once.pattern, once.since_step) == ("one_off", 17)
    (end,) = table({2: [STEPS - 1]}).ranks
    assert end.pattern == "one_off"


def test_steps_in_which_ranks_do_not_meet_count_for_nothing() -> None:
    """The ranks meet in each fourth of 40 steps; rank 2 is late in all ten."""
    (row,) = table({2: range(STEPS)}, meet=range(0, STEPS, 4)).ranks
    assert (row.pattern, row.late_steps, row.share_of_steps) == ("persistent", 10, 1.0)
    (row,) = table({2: range(0, STEPS, 8)}, meet=range(0, STEPS, 4)).ranks
    assert (row.pattern, row.late_steps, row.share_of_steps) == ("intermittent", 5, 0.5)


def test_late_steps_in_a_row_are_one_time() -> None:
    """Steps 3 to 7, 12, and 20 to 21."""
    (row,) = table({2: [3, 4, 5, 6, 7, 12, 20, 21]}).ranks
    assert (row.late_steps, row.late_times) == (8, 3)


@pytest.mark.parametrize(("small", "times"), [(15, 0), (16, 2), (30, 2)])
def test_only_delays_of_half_the_worst_rank_s_count_as_times(small: int, times: int) -> None:
    """Rank 2 is late by 30 ms, rank 1 in two other steps by less: half of 30 ms or less does not count."""
    rows = {row.rank: row for row in table({2: [3, 9, 12], 1: [5, 20]}, by={1: small, 2: 30}).ranks}
    assert (rows[2].late_times, rows[1].late_times) == (3, times)
    assert rows[1].late_steps == 2


def test_a_slow_node_is_told_from_a_slow_rank() -> None:
    node = table({2: range(STEPS), 3: range(STEPS)})
    assert node.scope == "node"
    assert [(item.host, item.ranks) for item in node.nodes] == [("b", [2, 3])]
    across = table({1: range(STEPS), 3: range(STEPS)})
    assert (across.scope, across.nodes) == ("rank", [])
    single = table({2: range(STEPS)}, nodes={rank: f"node{rank}" for rank in range(4)})
    assert single.scope == "not_determined"


def test_pattern_of_the_last_steps_of_a_run() -> None:
    late = np.zeros(100, dtype=np.bool_)
    late[-4:] = True
    assert pattern(late, np.zeros(100, dtype=np.int64)) == ("one_off", 96)
    late[-6:] = True
    assert pattern(late, np.zeros(100, dtype=np.int64)) == ("intermittent", 94)
    late[-24:] = True
    assert pattern(late, np.zeros(100, dtype=np.int64)) == ("intermittent", 76)
    # A quarter of the steps
    late[-25:] = True
    assert pattern(late, np.zeros(100, dtype=np.int64)) == ("persistent", 75)


def test_late_steps_before_do_not_make_a_short_end_persistent() -> None:
    late = np.zeros(100, dtype=np.bool_)
    late[0:80:4] = True  # 20 of 80, each after three punctual ones
    late[-10:] = True  # 30 of 100 are late, 10 of them in a row
    assert pattern(late, np.zeros(100, dtype=np.int64)) == ("intermittent", 0)
    late[-25:] = True  # the row itself is a quarter
    assert pattern(late, np.zeros(100, dtype=np.int64)) == ("persistent", 75)


def test_of_two_ranks_that_are_late_in_turn_only_one_is_late_persistently() -> None:
    """Rank 0 comes 30 late to the first collective of each step, rank 1 to the second."""
    come = {0: ((40, 50), (55, 95)), 1: ((10, 50), (85, 95))}
    records = {
        rank: [
            step(number, (100 * number, 100 * number + 100), rank=rank,
                 collectives=[(100 * number + start, 100 * number + end) for start, end in calls])
            for number in range(STEPS)
        ]
        for rank, calls in come.items()
    }  # fmt: skip
    found = match_collectives(records, dict.fromkeys(records, "clock"))
    assert not isinstance(found, str)
    made = lateness(found, range(STEPS), 100.0, {})
    assert made is not None
    assert [(row.rank, row.late_steps, row.pattern) for row in made.ranks] == [
        (0, STEPS, "persistent"),
        (1, STEPS, "intermittent"),
    ]


def test_one_rank_is_late_for_nobody() -> None:
    found = match_collectives({0: [step(0, (0, 10))]}, {0: "a"})
    assert not isinstance(found, str)
    assert lateness(found, [0], 10.0, {}) is None
