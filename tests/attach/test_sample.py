"""What py-spy prints, and a real job of two ranks that is watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aorta.artefacts.attached import StackShare
from aorta.attach.answer import answer
from aorta.attach.processes import of_job, of_pids, permission_words, work_of
from aorta.attach.sample import node_view, parse, role_of
from aorta.errors import RunError

RAW = """\
thread (12): MainThread;<module> (/p/a.py:3);step (/p/a.py:9) 7
thread (13): Thread-1;run (/p/b.py:1) 90
thread (12): MainThread;<module> (/p/a.py:3);step (/p/a.py:9) 2
process 1 "odd"
thread (12): MainThread;<module> (/p/a.py:4) 1
"""

PROGRAM = """
import sys, time
import torch.distributed as dist
import torch

def slow_part():
    time.sleep(0.06)

dist.init_process_group("gloo")
ready = open(sys.argv[1] + str(dist.get_rank()), "w")
while True:
    if dist.get_rank() == 1:
        slow_part()
    time.sleep(0.02)
    dist.all_reduce(torch.ones(1))
"""


def test_the_main_thread_s_stacks_are_counted_and_nothing_else():
    first, second = parse(RAW, 12)
    assert (first.samples, first.frames[-1]) == (7 + 2, ("step", "/p/a.py", 9))
    assert second.samples == 1


@pytest.mark.parametrize(
    ("frames", "role"),
    [
        ([("main", "/p/a.py", 1)], "rank"),
        ([("f", "/t/a.py", 1), ("_worker_loop", "/s/torch/utils/data/_utils/worker.py", 9)], "loader"),
        ([("run", "/s/torch/distributed/elastic/agent/server/api.py", 9)], "launcher"),
    ],
)
def test_the_role_of_a_process(frames, role):
    assert role_of([StackShare(frames=frames, samples=3)], ranked=False) == role
    assert role_of([], ranked=False) == "other"


def test_a_rank_that_waits_for_a_compiler_is_a_rank():
    frames = [("main", "/p/train.py", 3), ("Popen._wait", "/usr/lib/python3.11/subprocess.py", 2046)]
    stacks = [StackShare(frames=frames, samples=3)]
    assert role_of(stacks, ranked=True) == "rank"
    assert role_of(stacks, ranked=False) == "launcher"


@pytest.mark.parametrize(
    ("level", "word"), [("1", "ptrace_scope is 1"), ("3", "forbids"), ("0", "CAP_SYS_PTRACE")]
)
def test_a_refusal_names_the_missing_permission(tmp_path, level, word):
    (tmp_path / "scope").write_text(level + "\n")
    assert word in permission_words(tmp_path / "scope")


def test_a_process_that_is_not_there_or_another_user_s_is_refused(tmp_path):
    with pytest.raises(RunError, match="process 4194304"):
        of_pids([4194304])
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Name:\tpython\nUid:\t{os.getuid() + 1}\t0\t0\t0\n")
    with pytest.raises(RunError, match="process 7 belongs to"):
        of_pids([7], proc=tmp_path)


def test_a_process_that_forbids_to_be_read_is_said_to_and_belongs_to_its_user(tmp_path, monkeypatch):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Uid:\t{os.getuid()}\t0\t0\t0\n")

    def refuse(path):
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(RunError, match="CAP_SYS_PTRACE"):
        of_pids([7], proc=tmp_path)


def test_a_running_job_s_slow_rank_is_found_with_its_line_and_the_job_goes_on(tmp_path):
    script = tmp_path / "prog.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "WORLD_SIZE": "2"}
    environment |= {"SLURM_JOB_ID": f"test{os.getpid()}", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(tmp_path / "ready")], env=environment | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    try:
        limit = time.monotonic() + 120
        while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
            assert time.monotonic() < limit
            assert all(rank.poll() is None for rank in ranks)
            time.sleep(0.1)
        found = answer([node_view(of_job(environment["SLURM_JOB_ID"]), 4)], 4)
        assert (found.kind, found.ranks) == ("straggler", [1])
        assert found.where is not None
        assert (found.where.function, Path(found.where.file)) == ("slow_part", script)
        assert found.lost_ms_per_second > 300  # 60 of every 80 ms, less what sampling gives away
        assert all(rank.poll() is None for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_a_child_that_works_is_work_and_one_that_sleeps_is_none():
    codes = {"busy": "while True: pass", "asleep": "import time; time.sleep(60)"}
    children = {name: subprocess.Popen([sys.executable, "-c", code]) for name, code in codes.items()}
    try:
        pid = os.getpid()
        assert any(work_of([children["busy"].pid])[children["busy"].pid].runs for _ in range(200))
        time.sleep(1.0)
        assert not all(work_of([children["asleep"].pid])[children["asleep"].pid].runs for _ in range(5))
        assert pid not in work_of([pid])  # a process does not look at itself
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def test_a_look_that_is_killed_leaves_no_file(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    program = (
        "import os, sys\n"
        "from aorta.attach.processes import TorchProcess\n"
        "from aorta.attach.sample import node_view\n"
        "node_view([TorchProcess(pid=int(sys.argv[1]), parent=1, command='', environment={})], 2)\n"
    )
    watched = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    look = subprocess.Popen(
        [sys.executable, "-c", program, str(watched.pid)], env=os.environ | {"TMPDIR": str(temporary)}
    )
    try:
        children = Path(f"/proc/{look.pid}/task/{look.pid}/children")
        limit = time.monotonic() + 60
        while not children.read_text().strip():  # py-spy has started
            assert time.monotonic() < limit
            assert look.poll() is None
            time.sleep(0.02)
        look.kill()
        look.wait()
        assert not list(temporary.iterdir())
        assert watched.poll() is None
    finally:
        for child in (look, watched):
            child.kill()
            child.wait()
