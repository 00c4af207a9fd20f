"""Answers of `aorta attach` from made-up stacks: hangs, time per step, and GPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aorta.artefacts.attached import NodeView, ProcessView, StackShare
from aorta.attach.answer import answer

C10D = "/s/torch/distributed/distributed_c10d.py"
SAVE, STEP = ("save", "/p/train.py", 9), ("step", "/p/train.py", 30)
REDUCE, GATHER = ("all_reduce", C10D, 7), ("all_gather", C10D, 8)


def process(rank, stacks):
    return ProcessView(
        pid=100 + rank,
        host="node1",
        command="python train.py",
        rank=rank,
        world_size=2,
        parent=1,
        role="rank",
        stacks=[StackShare(frames=frames, samples=samples) for frames, samples in stacks],
        seconds=5.0,
        cpu_seconds=None,
    )


def looked(*ranks, **options):
    view = NodeView(host="node1", processes=[process(rank, stacks) for rank, stacks in enumerate(ranks)])
    return answer([view], 5.0, **options)


@pytest.mark.parametrize(
    ("stacks", "ranks", "words"),
    [
        ([[([STEP, REDUCE], 90)], [([STEP, SAVE], 90)]], [1], "Rank 1 is in save (/p/train.py:9)"),
        (
            [[([STEP, REDUCE], 90)], [([STEP, GATHER], 90)]],
            [0, 1],
            "all_reduce on rank 0, all_gather on rank 1",
        ),
        ([[([STEP, REDUCE], 90)], [([SAVE], 90)], [([SAVE], 90)]], [1, 2], "Ranks 1, 2 are in save"),
    ],
)
def test_stacks_that_do_not_change_are_a_hang_of_the_ranks_that_do_not_wait(stacks, ranks, words):
    found = looked(*stacks)
    assert (found.kind, found.ranks) == ("hang", ranks)
    assert words in found.statement
    assert found.gain is None


def test_ranks_that_all_wait_in_one_call_are_not_called_a_hang():
    assert looked([([STEP, REDUCE], 90)], [([STEP, REDUCE], 90)]).kind == "no_cause_seen"


SLOW = ([([STEP], 40), ([STEP, REDUCE], 60)], [([STEP], 40), ([STEP, REDUCE], 10), ([SAVE], 50)])


def test_the_gain_follows_from_the_share_where_steps_are_counted():
    found = looked(*SLOW, step_ms=80.0)
    assert (found.kind, found.ranks) == ("straggler", [1])
    assert found.lost_ms_per_step == pytest.approx(0.5 * 80.0)
    assert found.gain == pytest.approx(1 / (1 - 0.5))


def test_without_counted_steps_there_is_no_gain():
    found = looked(*SLOW)
    assert found.lost_ms_per_second == pytest.approx(500.0)
    assert (found.step_ms, found.lost_ms_per_step, found.gain) == (None, None, None)


@pytest.mark.parametrize(
    ("steps", "hint"), [(("0", "1"), "step 0 (1 rank), step 1 (1 rank)"), ((None, None), "process 100 on")]
)
def test_ranks_of_two_programs_are_not_compared(steps, hint):
    ranks = [process(rank, stacks) for rank, stacks in enumerate(SLOW)]
    apart = [replace(item, program=f"p{item.rank}", step=steps[item.rank]) for item in ranks]
    found = answer([NodeView(host="node1", processes=apart)], 5.0)
    assert found.kind == "insufficient_data"
    assert hint in found.statement
    together = [replace(item, program="p", step=steps[item.rank]) for item in ranks]
    assert answer([NodeView(host="node1", processes=together)], 5.0).kind == "straggler"


def test_one_rank_is_compared_with_nobody():
    assert "no other rank to compare" in looked(SLOW[0]).statement
