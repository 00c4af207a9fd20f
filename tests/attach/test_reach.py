"""Which Slurm job `aorta attach` means, in all the forms that jobs have: Slurm's real answers, made up."""

from __future__ import annotations

import pytest

from aorta.artefacts.attached import NodeView, encoded
from aorta.attach.reach import node_views, running_jobs
from aorta.errors import PlanError, SchedulerError
from aorta.launch.tools import ToolAnswer


def queue(*rows, code=0, err=""):
    return lambda _words: ToolAnswer(code, "".join(f"{row}\n" for row in rows), err)


def named(job, *rows):
    return [(item.raw_id, item.part, item.nodes, item.step) for item in running_jobs(job, "me", queue(*rows))]


@pytest.mark.parametrize(
    ("job", "rows", "expected"),
    [
        ("7", ["7|7|me|RUNNING|2"], [("7", None, 2, None)]),
        ("7.1", ["7|7|me|RUNNING|2"], [("7", None, 2, "1")]),
        ("7_2", ["7_2|9|me|RUNNING|1"], [("9", None, 1, None)]),
        ("7", ["7_[3-5]|7|me|PENDING|1", "7_2|9|me|RUNNING|1"], [("9", None, 1, None)]),
        ("7", ["7+0|7|me|RUNNING|1", "7+1|8|me|RUNNING|3"], [("7", "0", 1, None), ("7", "1", 3, None)]),
        ("7+1", ["7+0|7|me|RUNNING|1", "7+1|8|me|RUNNING|3"], [("7", "1", 3, None)]),
    ],
)
def test_the_forms_of_a_running_job(job, rows, expected):
    assert named(job, *rows) == expected


@pytest.mark.parametrize(
    ("job", "rows", "words", "hint"),
    [
        ("7", ["7|7|you|RUNNING|1"], "belongs to you", "your own jobs"),
        ("7", ["7|7|me|PENDING|1"], "is PENDING", "--start"),
        ("7", ["7|7|me|SUSPENDED|1"], "is SUSPENDED", "scontrol resume"),
        ("7", ["7|7|me|COMPLETING|1"], "is COMPLETING", "ending"),
        ("7", ["7|7|me|TIMEOUT|1"], "is TIMEOUT", "sacct -j 7"),
        ("7", ["7_1|8|me|RUNNING|1", "7_2|9|me|RUNNING|1"], "2 running elements: 7_1, 7_2", "name one"),
        ("train", [], "'train' is not a Slurm job", "type a number"),
        ("7; rm -r x", [], "is not a Slurm job", "type a number"),
    ],
)
def test_a_job_that_cannot_be_looked_at_is_refused_with_the_reason(job, rows, words, hint):
    with pytest.raises(PlanError) as refused:
        named(job, *rows)
    assert words in refused.value.message
    assert hint in refused.value.hint


def test_a_job_that_slurm_has_forgotten():
    unknown = queue(code=1, err="slurm_load_jobs error: Invalid job id specified")
    with pytest.raises(SchedulerError, match="does not contain job 7"):
        running_jobs("7", "me", unknown)
    with pytest.raises(SchedulerError, match="Unable to contact"):
        running_jobs("7", "me", queue(code=1, err="Unable to contact slurm controller"))


def test_each_part_of_a_heterogeneous_job_is_reached_and_a_silent_node_is_named():
    jobs = running_jobs("7", "me", queue("7+0|7|me|RUNNING|1", "7+1|8|me|RUNNING|2"))
    asked = []

    def call(words):
        asked.append(words)
        part = next(word for word in words if word.startswith("--het-group="))
        return ToolAnswer(0, encoded(NodeView(host=part, processes=[])))

    views, problems = node_views(jobs, 2.0, call)
    assert [view.host for view in views] == ["--het-group=0", "--het-group=1"]
    assert all(words[words.index("--jobid") + 1] == "7" for words in asked)
    assert problems == ["1 of 2 nodes gave no answer: no reason given"]
