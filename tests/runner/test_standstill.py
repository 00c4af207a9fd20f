"""When ranks stand still, and when they only take long."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from aorta.artefacts.attached import NodeStandstill, NodeView, ProcessView, StackShare, encoded
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import Scenario
from aorta.runner.options import NodeOptions
from aorta.runner.standstill import StandstillWatch, stands_still

HOST = ("save", "/p/train.py", 9)
WAIT = ("all_reduce", "/s/torch/distributed/distributed_c10d.py", 7)


def process(rank, *stacks, cpu=0.0, io=0, role="rank", runs=False):
    return ProcessView(
        pid=100 + rank,
        host="h",
        command="python p",
        rank=rank,
        world_size=2,
        parent=1,
        role=role,
        stacks=[StackShare(frames=[frame], samples=20) for frame in stacks],
        seconds=2.0,
        cpu_seconds=cpu,
        io_bytes=io,
        runs=runs,
    )


def view(*processes):
    return NodeView(host="h", processes=list(processes))


STILL = view(process(0, WAIT), process(1, HOST))


def test_the_same_stacks_twice_and_no_work_is_a_standstill():
    assert stands_still([STILL], STILL)


@pytest.mark.parametrize(
    "moving",
    [
        view(process(0, WAIT), process(1, HOST, ("step", "/p/train.py", 3))),
        view(process(0, WAIT), process(1, HOST, cpu=1.9)),
        view(process(0, WAIT), process(1, HOST, io=64 << 20)),
        view(process(0, WAIT), process(1, HOST, runs=True)),
        view(process(0, WAIT), process(1, ("step", "/p/train.py", 3))),
        view(process(0, WAIT), process(1)),
        view(),
    ],
    ids=["stack moves", "computes", "writes", "wants a core", "moved on", "not seen", "nobody"],
)
def test_a_rank_that_moves_works_or_is_not_seen_is_no_standstill(moving):
    assert not stands_still([STILL], moving)


def test_a_rank_that_spins_in_a_collective_stands_still_all_the_same():
    assert stands_still([STILL], view(process(0, WAIT, cpu=2.0), process(1, HOST)))


def test_a_launcher_s_stack_does_not_count():
    launcher = process(7, HOST, ("run", "/s/api.py", 1), role="launcher")
    assert stands_still([STILL], view(*STILL.processes, launcher))


def test_records_that_stop_are_looked_into_and_told_once_and_so_is_going_on(tmp_path, monkeypatch):
    options = NodeOptions(
        scenario=Scenario("1node"),
        results=tmp_path,
        config=None,
        executor="local",
        job_id="local-7",
        nodes=1,
        node_index=0,
    )
    run = options.run_dir
    run.node(0).root.mkdir(parents=True)
    said = []
    marker = tmp_path / "notified"
    watch = StandstillWatch(
        options,
        range(2),
        limit_s=0.05,
        on_hang=f"touch {marker}",
        environ={"PATH": "/usr/bin:/bin"},
        gpus=False,
        say=said.append,
    )
    looked = [sys.executable, "-c", "import sys; print(sys.argv[1])", encoded(STILL)]
    monkeypatch.setattr(watch, "_start", lambda: subprocess.Popen(looked, stdout=subprocess.PIPE, text=True))
    run.records(0).write_text("{}\n")
    watch.look()
    run.records(0).write_text("{}\n{}\n")
    limit = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < limit
        watch.look()
        time.sleep(0.02)
    told = read_json(run.node(0).standstill, NodeStandstill)
    assert told.resumed_wall_ns is None
    assert [item.rank for item in told.view.processes] == [0, 1]
    assert len(said) == 1
    run.records(1).write_text("{}\n")
    watch.look()
    watch.close()
    assert read_json(run.node(0).standstill, NodeStandstill).resumed_wall_ns >= told.seen_wall_ns
    assert said[1] == "the ranks of this node make progress again"
