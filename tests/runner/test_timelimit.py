"""Time limits and cancellations."""

from __future__ import annotations

import pytest

from aorta.runner.options import TimeLimits
from aorta.runner.timelimit import hit_time_limit, job_ends_wall_ns, limit_by_squeue

LIMITS = TimeLimits(signal_lead_s=150)
S = 10**9


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("RUNNING|1:30", True),
        ("RUNNING|1:00:00", False),
        ("RUNNING|1-00:00:10", False),
        ("COMPLETING|1:30", False),
        ("COMPLETING|0:00", True),
        ("RUNNING|UNLIMITED", False),
        ("RUNNING|INVALID", False),
        ("", False),
    ],
)
def test_squeue_tells_a_limit_from_a_cancellation(answer, expected):
    assert limit_by_squeue(answer + "\n", 150) is expected


def test_slurms_end_time_decides_where_it_is_known():
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "1000"}
    assert hit_time_limit(environ, 3, LIMITS, None, now_ns=(1000 - 150) * S)
    assert not hit_time_limit(environ, 3, LIMITS, 0, now_ns=(1000 - 151) * S)
    assert not hit_time_limit({}, 0, LIMITS, None, now_ns=0)
    assert job_ends_wall_ns(environ, now_ns=7) == 1000 * S


def test_other_nodes_go_by_the_end_that_node_0_published():
    assert hit_time_limit({"SLURM_JOB_ID": "1"}, 3, LIMITS, 1000 * S, now_ns=(1000 - 150) * S)
    assert not hit_time_limit({"SLURM_JOB_ID": "1"}, 3, LIMITS, 1000 * S, now_ns=(1000 - 151) * S)


def squeue(folder, monkeypatch, answer, code=0):
    path = folder / "squeue"
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_node_0_asks_squeue_for_the_time_that_is_left(tmp_path, monkeypatch):
    squeue(tmp_path, monkeypatch, "1:02:03")
    ends = job_ends_wall_ns({"SLURM_JOB_ID": "1"}, now_ns=5 * S)
    assert ends == (5 + 3600 + 2 * 60 + 3) * S
    assert job_ends_wall_ns({}, now_ns=5 * S) is None  # no job: nobody is asked


def test_no_limit_is_none(tmp_path, monkeypatch):
    squeue(tmp_path, monkeypatch, "UNLIMITED")
    assert job_ends_wall_ns({"SLURM_JOB_ID": "1"}, now_ns=5 * S) is None


def test_node_0_tells_a_cancellation_from_the_limit(tmp_path, monkeypatch):
    environ = {"SLURM_JOB_ID": "1"}
    squeue(tmp_path, monkeypatch, "COMPLETING|1:30")
    assert not hit_time_limit(environ, 0, LIMITS, 1000 * S, now_ns=1000 * S)
    squeue(tmp_path, monkeypatch, "", code=1)
    assert hit_time_limit(environ, 0, LIMITS, 1000 * S, now_ns=1000 * S)
