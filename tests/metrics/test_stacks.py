"""Stacks of ranks against each other: tiny samples with the answer by hand."""

from __future__ import annotations

import pytest

from aorta.metrics.stacks import compare, line_of

MAIN = ("main", "/home/u/train.py", 10)
HOST = ("augment", "/home/u/train.py", 30)
READ = ("__getitem__", "/home/u/data.py", 7)
LOADER = ("__next__", "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 700)
BACKWARD = ("_engine_run_backward", "/v/lib/python3.11/site-packages/torch/autograd/graph.py", 800)
REDUCE = ("all_reduce", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 99)
LINEAR = ("forward", "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", 116)


def seen(work, wait, extra=0, *, where=(MAIN, HOST), waits=BACKWARD):
    found = {(MAIN, LINEAR): work, (MAIN, waits): wait, tuple(where): extra}
    return {stack: samples for stack, samples in found.items() if samples}


@pytest.mark.parametrize("waits", [BACKWARD, REDUCE])
def test_the_rank_that_waits_least_is_late_in_the_line_that_the_others_lack(waits):
    found = compare(
        {0: seen(40, 60, waits=waits), 1: seen(40, 10, 50, waits=waits), 2: seen(38, 62, waits=waits)}
    )
    late = found.late
    assert (late.rank, late.kind) == (1, "straggler")
    assert late.lost == pytest.approx((0.60 + 0.62) / 2 - 0.10)
    assert (late.where.function, late.where.line) == ("augment", 30)
    assert (late.where.share, late.where.others) == (0.5, 0.0)


def test_a_slow_loader_is_named_as_loading_with_the_line_of_the_data_set():
    found = compare({0: seen(40, 60), 1: seen(40, 10, 50, where=(MAIN, LOADER, READ))})
    assert (found.late.rank, found.late.kind) == (1, "data_loading")
    assert found.late.where.file == "/home/u/data.py"
    assert found.loading == {0: 0.0, 1: 0.5}


def test_ranks_that_wait_alike_have_no_late_one():
    assert compare({0: seen(40, 60), 1: seen(45, 55)}).late is None


def test_a_difference_by_chance_is_none():
    # 5 samples per rank: one of them is 20 %, and 4 standard deviations are 4 * 0.5 / sqrt(5) = 89 %.
    assert compare({0: seen(2, 3), 1: seen(2, 1, 2)}).late is None


def test_more_compute_without_a_line_of_its_own_is_late_without_a_place():
    found = compare({0: seen(20, 80), 1: {(LINEAR,): 50, (MAIN, BACKWARD): 30, (MAIN, REDUCE): 20}})
    assert (found.late.rank, found.late.where.function) == (1, "forward")


def test_one_rank_waits_for_nobody():
    assert compare({0: seen(40, 60)}).late is None


def test_stacks_that_never_change_are_still_and_others_are_not():
    still = compare({0: {(MAIN, REDUCE): 100}, 1: {(MAIN, HOST): 100}})
    assert still.still
    assert (still.late.rank, still.late.lost) == (1, 1.0)
    assert not compare({0: {(MAIN, REDUCE): 99, (MAIN, LINEAR): 1}, 1: {(MAIN, HOST): 100}}).still


def test_the_line_of_a_stack_is_the_program_s_own_where_there_is_one():
    assert line_of((MAIN, LINEAR)) == MAIN
    assert line_of((LINEAR, REDUCE)) == REDUCE


@pytest.mark.parametrize(("file", "late"), [("/home/u/layers.py", 1), (BACKWARD[1], None)])
def test_a_backward_pass_of_the_program_s_own_is_work_and_torch_s_is_a_wait(file, late):
    own = (MAIN, BACKWARD, ("Attention.backward", file, 5))
    found = compare({0: seen(40, 60), 1: {(MAIN, LINEAR): 40, (MAIN, BACKWARD): 10, own: 50}})
    assert (found.late.rank if found.late else None) == late


def test_the_frames_of_our_hooks_are_not_the_program_s():
    hook = ("waited", "/x/aorta/instrument/watching.py", 9)
    waits = {(MAIN, REDUCE, hook): 60, (MAIN, LINEAR): 40}
    found = compare({0: waits, 1: seen(40, 10, 50, waits=REDUCE)})
    assert found.waiting == {0: 0.6, 1: 0.1}
