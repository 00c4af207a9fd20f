"""Who holds a job up: tiny recordings with the answer by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aorta.artefacts.flight import FlightCall, FlightGroup, Recording
from aorta.metrics.standstill import standstill, why_none

WORLD = FlightGroup("0", "default_pg", (0, 1, 2))
PAIR = FlightGroup("1", "pipeline", (0, 1))


def call(number, operation="all_reduce", *, sizes=((8,),), done=False, group="0", peer=None):
    return FlightCall(
        group=group,
        number=number,
        operation=operation,
        p2p=peer is not None,
        peer=peer,
        sizes=sizes,
        types=("Float",),
        created_ns=number * 1000,
        started=None,
        finished=done,
    )


def recording(rank, *calls, enqueued, completed, groups=(WORLD,)):
    return Recording(
        source=f"rank {rank}",
        rank=rank,
        groups={group.name: group for group in groups},
        calls=calls,
        enqueued={"0": enqueued},
        completed={"0": completed},
    )


def test_nobody_waits_where_every_call_has_ended():
    assert standstill([recording(rank, enqueued=5, completed=5) for rank in range(3)]) is None


def test_the_rank_that_did_not_call_is_guilty_and_the_others_wait_for_it():
    found = standstill(
        [
            recording(0, call(6), enqueued=6, completed=5),
            recording(1, enqueued=5, completed=5),
            recording(2, call(6), enqueued=6, completed=5),
        ]
    )
    assert [(item.rank, item.kind) for item in found.guilty] == [(1, "host_stuck")]
    assert found.waiting == {0: (1,), 2: (1,)}
    assert (found.call.number, found.group) == (6, WORLD)


def test_a_rank_that_waits_itself_is_not_guilty():
    # Rank 0 waits in a receive for rank 1, and rank 2 waits for rank 0's collective: rank 1 is the cause.
    found = standstill(
        [
            recording(0, call(3, "recv", group="1", peer=1), enqueued=5, completed=5, groups=(WORLD, PAIR)),
            recording(1, enqueued=5, completed=5, groups=(WORLD, PAIR)),
            recording(2, call(6), enqueued=6, completed=5),
        ]
    )
    assert [(item.rank, item.kind) for item in found.guilty] == [(1, "host_stuck")]
    assert found.waiting[0] == (1,)


def test_a_gpu_that_does_not_end_what_others_have_ended():
    found = standstill(
        [
            recording(0, call(8), enqueued=8, completed=7),
            recording(1, call(5), call(6), enqueued=6, completed=4),
            recording(2, call(8), enqueued=8, completed=7),
        ]
    )
    assert [(item.rank, item.kind, item.call.number) for item in found.guilty] == [(1, "gpu_stuck", 5)]
    assert found.waiting == {0: (1,), 2: (1,)}


def test_another_collective_and_another_size_are_named_by_the_majority():
    same = [recording(rank, call(6), enqueued=6, completed=5) for rank in (0, 2)]
    other = recording(1, call(6, "broadcast"), enqueued=6, completed=5)
    size = recording(1, call(6, sizes=((9,),)), enqueued=6, completed=5)
    assert [(i.rank, i.kind) for i in standstill([*same, other]).guilty] == [(1, "other_collective")]
    assert [(i.rank, i.kind) for i in standstill([*same, size]).guilty] == [(1, "other_size")]


def test_uneven_sizes_of_an_exchange_are_no_fault():
    found = standstill(
        [recording(r, call(6, "all_to_all", sizes=((r + 1,),)), enqueued=6, completed=5) for r in range(3)]
    )
    assert (found.kind, found.guilty) == ("transfer_stuck", ())
    assert set(found.waiting) == {0, 1, 2}


def test_of_two_ranks_the_past_says_which_one_left_the_pattern():
    past = [call(n, ("all_reduce", "broadcast")[n % 2], done=True) for n in range(8)]
    usual = recording(0, *past, call(8), enqueued=8, completed=7)
    odd = recording(1, *past, call(8, "barrier"), enqueued=8, completed=7)
    assert [(item.rank, item.kind) for item in standstill([usual, odd]).guilty] == [(1, "other_collective")]


def test_of_two_ranks_without_a_past_both_are_named():
    found = standstill(
        [
            recording(0, call(1), enqueued=1, completed=0),
            recording(1, call(1, "barrier"), enqueued=1, completed=0),
        ]
    )
    assert [item.rank for item in found.guilty] == [0, 1]


def test_a_rank_without_a_recording_is_dead_if_it_is_all_that_is_waited_for():
    found = standstill([recording(rank, call(6), enqueued=6, completed=5) for rank in (0, 2)])
    assert [(item.rank, item.kind) for item in found.guilty] == [(1, "dead_peer")]


def test_two_ranks_that_both_receive_first_wait_in_a_circle():
    found = standstill(
        [
            recording(0, call(1, "recv", group="1", peer=1), enqueued=5, completed=5, groups=(WORLD, PAIR)),
            recording(1, call(1, "recv", group="1", peer=0), enqueued=5, completed=5, groups=(WORLD, PAIR)),
        ]
    )
    assert (found.kind, [item.rank for item in found.guilty]) == ("deadlock", [0, 1])


def test_the_others_wait_in_the_usual_call_and_not_in_the_odd_one():
    # The odd call was made first, and is still not the one that the other ranks are in.
    odd = recording(0, replace(call(6, "broadcast"), created_ns=1), enqueued=6, completed=5)
    same = [recording(rank, call(6), enqueued=6, completed=5) for rank in (1, 2)]
    found = standstill([odd, *same])
    assert (found.guilty[0].rank, found.call.operation) == (0, "all_reduce")


def test_without_a_description_of_groups_the_ranks_that_use_one_are_its_members():
    found = standstill(
        [
            recording(0, call(6), enqueued=6, completed=5, groups=()),
            recording(1, enqueued=5, completed=5, groups=()),
            recording(2, call(6), enqueued=6, completed=5, groups=()),
        ]
    )
    assert [(item.rank, item.kind) for item in found.guilty] == [(1, "host_stuck")]
    everywhere = [recording(rank, call(6), enqueued=6, completed=5, groups=()) for rank in range(3)]
    assert standstill(everywhere).kind == "transfer_stuck"


SECOND = 1_000_000_000


def timed(number, made_s, ended_s=None, *, sizes=((8,),)):
    ended = None if ended_s is None else int(ended_s * SECOND)
    made = call(number, sizes=sizes, done=ended is not None)
    return replace(made, created_ns=int(made_s * SECOND), finished_ns=ended)


def pair(calls, *, age_s):
    """Rank 0 has made these calls and one more; rank 1 has not made that one."""
    last = timed(len(calls) + 1, 1000)
    done = len(calls)
    first = recording(0, *calls, last, enqueued=done + 1, completed=done)
    second = recording(1, *calls, enqueued=done, completed=done)
    taken = int((1000 + age_s) * SECOND)
    return [replace(item, taken_ns=taken) for item in (first, second)]


@pytest.mark.parametrize(("age_s", "kind"), [(4.9, None), (5.1, "host_stuck")])
def test_a_wait_as_long_as_three_earlier_ones_is_the_pace_of_the_job(age_s, kind):
    steps = [timed(number, 10 * number, 10 * number + 5) for number in (1, 2, 3)]
    found = standstill(pair(steps, age_s=age_s))
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    "earlier",
    [
        [timed(number, 10 + number / 10, 20) for number in range(1, 6)],  # one wait, five calls in it
        [timed(number, 10 * number, 10 * number + 5, sizes=((4,),)) for number in (1, 2, 3)],  # other calls
        [timed(number, 10 * number, 10 * number + 5) for number in (1, 2)],  # twice may be chance
        [timed(number, 10 * number, 10 * number + 1) for number in (1, 2, 3)],  # shorter waits
    ],
)
def test_earlier_waits_that_do_not_excuse_a_wait(earlier):
    assert standstill(pair(earlier, age_s=4)).kind == "host_stuck"


def test_recorders_without_a_call_do_not_say_that_calls_ended():
    empty = [replace(recording(rank, enqueued=0, completed=0), enqueued={}) for rank in range(2)]
    assert why_none(empty).startswith("These flight recorders contain no calls")
    ended = [recording(rank, call(1, done=True), enqueued=1, completed=1) for rank in range(2)]
    assert "has ended" in why_none(ended)
