"""What is said of a run that still trains: tiny records with the answer by hand."""

from __future__ import annotations

import json
import shutil

import pytest

from aorta.artefacts.attached import NodeStandstill, NodeView
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.launch.so_far import so_far
from tests.support.synthetic import RunSpec, write_run

MS = 1_000_000


def write(run, rank, steps):
    """Records of steps, each (compute, communication, loading, host) in ms."""
    now, lines = 0, []
    for index, parts in enumerate(steps):
        whole = sum(parts) * MS
        names = ("compute_ns", "exposed_comm_ns", "data_wait_ns", "host_ns")
        breakdown = {name: ms * MS for name, ms in zip(names, parts, strict=True)}
        lines.append(
            {
                "global_step": index,
                "phase": "warmup" if index < 2 else "steady",
                "mono_start_ns": now,
                "mono_end_ns": now + whole,
                "breakdown": breakdown,
            }
        )
        now += whole
    run.root.mkdir(parents=True, exist_ok=True)
    run.records(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "run")


def test_shares_and_the_rank_that_the_others_wait_for(run):
    for rank, parts in {0: (50, 40, 5, 5), 1: (50, 0, 45, 5), 2: (50, 38, 7, 5)}.items():
        write(run, rank, [parts] * 20)
    found = so_far(run)
    assert found.step_ms == 100
    assert found.parts["compute"] == pytest.approx(0.5)
    assert found.parts["communication"] == pytest.approx((0.40 + 0.0 + 0.38) / 3)
    assert found.waited_for == (1, pytest.approx((40 + 38) / 2 - 0))
    assert found.slower_since is None
    assert "the others wait 39 ms for rank 1" in found.words


def test_ranks_that_wait_alike_and_a_single_rank_name_nobody(run):
    write(run, 0, [(50, 40, 5, 5)] * 20)
    assert so_far(run).waited_for is None
    write(run, 1, [(50, 38, 7, 5)] * 20)
    assert so_far(run).waited_for is None


def test_a_slow_down_is_named_with_the_step_where_it_began(run):
    write(run, 0, [(10, 0, 0, 0)] * 900 + [(30, 0, 0, 0)] * 300)
    found = so_far(run)
    assert (found.step_ms, found.start_ms) == (30, 10)
    assert found.slower_since == pytest.approx(900, abs=40)
    write(run, 0, [(10, 0, 0, 0)] * 1200)
    assert so_far(run).slower_since is None


def test_too_few_records_say_nothing_and_broken_lines_cost_themselves(run):
    write(run, 0, [(10, 0, 0, 0)])
    assert so_far(run) is None
    write(run, 0, [(10, 0, 0, 0)] * 8)
    with run.records(0).open("a") as stream:
        stream.write('{broken\n{"global_step": 9')
    assert so_far(run).step_ms == 10


def test_steps_that_nobody_timed_have_no_parts(run):
    run.root.mkdir(parents=True)
    line = {"global_step": 3, "phase": "steady", "mono_start_ns": 0, "mono_end_ns": 7 * MS, "breakdown": None}
    run.records(0).write_text(3 * (json.dumps(line) + "\n"))
    found = so_far(run)
    assert (found.parts, found.words) == ({}, "7 ms per step")


def stands(node, *, since_s, resumed=None, attempt=0):
    """The node's agent says at 12 s that its ranks have not gone on since `since_s`."""
    told = NodeStandstill(
        node_index=0,
        attempt=attempt,
        since_wall_ns=since_s * 1000 * MS,
        seen_wall_ns=12_000 * MS,
        resumed_wall_ns=resumed,
        view=NodeView(host="h", processes=[]),
    )
    write_json(node.standstill, told)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("two"), RunSpec(nodes=2, ranks_per_node=1)).root


@pytest.mark.parametrize(
    ("changes", "job_s", "nodes"),
    [
        ({0: {"since_s": 2}, 1: {"since_s": 5}}, 12 - 5, ()),
        ({0: {"since_s": 2}}, None, (0,)),
        ({1: {"since_s": 2}}, None, (1,)),
        ({0: {"since_s": 2}, 1: {"since_s": 5, "resumed": 9}}, None, (0,)),
        ({0: {"since_s": 2, "resumed": 9}, 1: {"since_s": 5, "resumed": 9}}, None, ()),
        ({0: {"since_s": 2, "attempt": 1}, 1: {"since_s": 5, "attempt": 1}}, None, ()),
        ({}, None, ()),
    ],
)
def test_the_job_stands_still_only_where_each_node_does(two_nodes, tmp_path, changes, job_s, nodes):
    run = RunDir(tmp_path / "run")
    shutil.copytree(two_nodes, run.root)
    for index, said in changes.items():
        stands(run.node(index), **said)
    found = so_far(run)
    assert (found.stands_still_s, found.still_nodes) == (job_s, nodes)
    assert ("the job stands still, for 7 s" in found.words) is (job_s is not None)
    assert (
        (f"node {nodes[0]}: no rank makes progress" in found.words)
        if nodes
        else "makes progress" not in found.words
    )
