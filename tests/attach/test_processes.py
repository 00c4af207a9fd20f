"""Which processes of a node are ranks: a made-up procfs with programs in all their forms."""

from __future__ import annotations

import os

from aorta.attach.processes import of_job

TORCH = "7f00-7f01 r-xp 0 08:01 1 /s/torch/lib/libtorch_cpu.so\n"


def process(proc, pid, *, parent=1, torch=True, program="python3.11", **environment):
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "maps").write_text(TORCH if torch else "")
    (folder / "cmdline").write_bytes(b"python\0train.py\0")
    (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in environment.items()))
    (folder / "stat").write_text(f"{pid} ({program}) S {parent} " + "0 " * 48)
    (folder / "exe").symlink_to(f"/usr/bin/{program}")
    return folder


def found(proc, job="7", step=None):
    return [item.pid for item in of_job(job, step=step, proc=proc)]


def rank(number, **more):
    return {"RANK": number, "WORLD_SIZE": 2, "SLURM_JOB_ID": 7} | more


def test_processes_with_torch_of_this_job_and_step(tmp_path):
    process(tmp_path, 10, **rank(0, SLURM_STEP_ID=0))
    process(tmp_path, 11, **rank(0, SLURM_STEP_ID=1))
    process(tmp_path, 12, **rank(0) | {"SLURM_JOB_ID": 8})
    process(tmp_path, 13, program="bash", torch=False, SLURM_JOB_ID=7)
    assert found(tmp_path) == [10, 11]
    assert found(tmp_path, step="1") == [11]


def test_a_program_that_overwrote_its_environment_is_of_its_parent_s_job(tmp_path):
    process(tmp_path, 10, torch=False, program="bash", SLURM_JOB_ID=7, SLURM_STEP_ID=3)
    process(tmp_path, 11, parent=10)
    process(tmp_path, 12, parent=11)
    process(tmp_path, 13, parent=1)
    assert found(tmp_path) == [11, 12]
    assert [item.step for item in of_job("7", proc=tmp_path)] == ["3", "3"]


def test_a_rank_that_hangs_before_it_has_torch_is_seen_and_its_helpers_are_not(tmp_path):
    process(tmp_path, 10, torch=False, **rank(0))
    process(tmp_path, 11, parent=10, torch=False, **rank(0))  # such as a resource tracker
    process(tmp_path, 12, torch=False, SLURM_JOB_ID=7)  # some other Python
    assert found(tmp_path) == [10]


def test_what_a_rank_starts_is_no_second_rank(tmp_path):
    process(tmp_path, 9, SLURM_JOB_ID=7)  # torchrun, which has no rank
    process(tmp_path, 10, parent=9, **rank(0))
    process(tmp_path, 11, parent=9, **rank(1))
    process(tmp_path, 12, parent=10, **rank(0))  # a compiler, a loader
    children = {item.pid: item.child_of_rank for item in of_job("7", proc=tmp_path)}
    assert children == {9: False, 10: False, 11: False, 12: True}


def test_ranks_of_one_training_have_one_program(tmp_path):
    process(tmp_path, 10, **rank(0, MASTER_ADDR="n1", MASTER_PORT=29500, SLURM_STEP_ID=0))
    process(tmp_path, 11, **rank(1, MASTER_ADDR="n1", MASTER_PORT=29500, SLURM_STEP_ID=1))
    process(tmp_path, 12, **rank(0, SLURM_STEP_ID=2))
    programs = [item.program for item in of_job("7", proc=tmp_path)]
    assert programs[0] == programs[1] != programs[2]
    assert os.getpid() not in found(tmp_path)
