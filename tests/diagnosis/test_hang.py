"""A job that stood still is never healthy, and the rank that held it up is named with its line."""

from __future__ import annotations

import pytest

from aorta.artefacts.attached import NodeStandstill, NodeView, ProcessView, StackShare
from aorta.artefacts.flight import FlightCall, FlightGroup, Recording
from aorta.diagnosis.analyse_recordings import analyse_recordings
from aorta.diagnosis.hang import hang_of_run, hang_verdict
from aorta.report.confidence import confidence

DDP = ("_engine_run_backward", "/s/site-packages/torch/autograd/graph.py", 979)
MAIN = ("main", "/home/u/train.py", 20)
C10D = "/s/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = (("main", "/home/u/train.py", 30), ("all_reduce", C10D, 1), ("wait", C10D, 2))
BARRIER = (("main", "/home/u/train.py", 44), ("barrier", C10D, 1))
SAVE = (MAIN, ("save", "/home/u/ckpt.py", 7))
LOAD = (MAIN, ("__next__", "/s/site-packages/torch/utils/data/dataloader.py", 5))


def node(index, stacks, **changes):
    processes = [
        ProcessView(
            pid=rank,
            host=f"n{index}",
            command="python",
            rank=rank,
            world_size=4,
            parent=1,
            role="rank",
            stacks=[StackShare(frames=list(stack), samples=40)],
            seconds=2.0,
            cpu_seconds=0.0,
        )
        for rank, stack in stacks.items()
    ]
    view = NodeView(host=f"n{index}", processes=processes)
    return NodeStandstill(node_index=index, attempt=0, since_wall_ns=1, seen_wall_ns=2, view=view, **changes)


@pytest.mark.parametrize(
    ("stacks", "kind", "ranks", "call"),
    [
        ({0: (MAIN, DDP), 1: SAVE, 2: (MAIN, DDP)}, "host_stuck", [1], None),
        ({0: REDUCE, 1: REDUCE, 2: SAVE, 3: SAVE}, "host_stuck", [2, 3], "all_reduce"),
        ({0: REDUCE, 1: LOAD}, "loader_stuck", [1], "all_reduce"),
        ({0: REDUCE, 1: BARRIER, 2: REDUCE}, "other_collective", [1], "all_reduce"),
        ({0: REDUCE, 1: REDUCE}, "transfer_stuck", [], "all_reduce"),
    ],
)
def test_who_held_the_job_up(stacks, kind, ranks, call):
    half = max(1, len(stacks) // 2)
    nodes = [
        node(0, {rank: stack for rank, stack in stacks.items() if rank < half}),
        node(1, {rank: stack for rank, stack in stacks.items() if rank >= half}),
    ]
    found = hang_of_run(nodes, nodes=2, state="timeout", last_steps={0: 7, 1: 6})
    assert (found.kind, [item.rank for item in found.ranks], found.collective) == (kind, ranks, call)
    assert found.after_step == 6
    assert found.waiting_ranks == [rank for rank in stacks if rank not in ranks]


def test_the_line_is_the_guilty_rank_s():
    found = hang_of_run([node(0, {0: REDUCE, 1: SAVE})], nodes=1, state="timeout", last_steps={})
    assert (found.where.function, found.where.file, found.where.line) == SAVE[-1]
    verdict = hang_verdict(found, " The job did not complete (timeout).")
    assert verdict.statement == (
        "The job stood still: rank 0 waits in all_reduce; rank 1 did not reach it (save, ckpt.py:7)."
        " The job did not complete (timeout)."
    )
    assert (verdict.kind, verdict.ranks) == ("hang", [1])


@pytest.mark.parametrize("state", ["completed", "timeout"])
def test_a_job_that_completed_or_never_stood_still_has_no_hang(state):
    told = [node(0, {0: REDUCE, 1: SAVE})] if state == "completed" else []
    assert hang_of_run(told, nodes=1, state=state, last_steps={}) is None


def call(number, *, done=False):
    return FlightCall(
        group="0",
        number=number,
        operation="all_reduce",
        p2p=False,
        peer=None,
        sizes=((4,),),
        types=(),
        created_ns=number,
        started=None,
        finished=done,
    )


def recordings(*last):
    group = FlightGroup("0", "data", tuple(range(len(last))))
    return [
        Recording(
            source=str(rank),
            rank=rank,
            groups={"0": group},
            calls=tuple(call(n) for n in range(5, most + 1)),
            enqueued={"0": most},
            completed={"0": 4},
        )
        for rank, most in enumerate(last)
    ]


def test_flight_recorders_give_the_same_verdict():
    made = analyse_recordings(recordings(5, 4, 5))
    assert (made.verdict.kind, made.verdict.ranks) == ("hang", [1])
    assert made.hang.waiting_ranks == [0, 2]
    assert made.findings[0].kind == "hang"


def test_flight_recorders_of_a_job_that_went_on_are_not_healthy_either():
    made = analyse_recordings(recordings(4, 4, 4))
    assert made.hang is None
    assert made.verdict.kind == "insufficient_data"


@pytest.mark.parametrize(("nodes", "kind"), [(1, "transfer_stuck"), (2, None)])
def test_ranks_that_wait_for_a_node_that_did_not_stand_still_are_no_standstill(nodes, kind):
    found = hang_of_run([node(0, {0: REDUCE, 1: REDUCE})], nodes=nodes, state="cancelled", last_steps={})
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(("last", "level"), [((5, 5, 5), "low"), ((5, 4, 5), "high")])
def test_a_hang_without_a_guilty_rank_is_no_sure_cause(last, level):
    made = analyse_recordings(recordings(*last))
    assert made.verdict.kind == "hang"
    assert confidence(made, made.findings[0], shared=False).level == level
    assert ("nothing shows which rank" in made.verdict.statement) is (level == "low")
