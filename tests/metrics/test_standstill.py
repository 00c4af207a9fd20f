"""Who holds a job up: tiny recordings with the answer by hand."""

from __future__ import annotations

from dataclasses import replace

from aorta.artefacts.flight import FlightCall, FlightGroup, Recording
from aorta.metrics.standstill import standstill

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
