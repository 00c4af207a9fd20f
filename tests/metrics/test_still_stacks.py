"""One stack per rank: who waits, and who holds the others up."""

from __future__ import annotations

from aorta.metrics.still_stacks import still_ranks

C10D = "/s/torch/distributed/distributed_c10d.py"


def test_of_two_ranks_in_different_calls_both_are_named():
    found = still_ranks({0: (("all_reduce", C10D, 1),), 1: (("broadcast", C10D, 1),)})
    assert {rank: (item.kind, item.call) for rank, item in found.items()} == {
        0: ("other_collective", "all_reduce"),
        1: ("other_collective", "broadcast"),
    }


def test_ranks_that_wait_in_a_backward_pass_say_no_call_and_none_is_odd():
    backward = (("_engine_run_backward", "/s/torch/autograd/graph.py", 1),)
    found = still_ranks({0: backward, 1: backward})
    assert {item.kind for item in found.values()} == {"waiting"}
    assert {item.call for item in found.values()} == {None}


def test_a_rank_in_a_barrier_is_odd_among_ranks_that_exchange_gradients():
    backward = (("_engine_run_backward", "/s/torch/autograd/graph.py", 1),)
    hook = ("waited", "/x/aorta/instrument/watching.py", 9)
    barrier = (("evaluate", "/p/train.py", 3), ("barrier", C10D, 1), hook)
    found = still_ranks({0: backward, 1: backward, 2: barrier})
    assert {rank: item.kind for rank, item in found.items()} == {
        0: "waiting",
        1: "waiting",
        2: "other_collective",
    }
    assert found[2].line == ("evaluate", "/p/train.py", 3)
