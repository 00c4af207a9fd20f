"""Step records: broken, truncated, foreign and repeated lines cost themselves, and are named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir
from aorta.readers.steps import read_steps
from tests.support.synthetic import RunSpec, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path, RunSpec(steps=6, warmup=2))


def edit(run: RunDir, rank: int, change: dict[int, object]) -> None:
    """Replace whole lines (0-based) by text, or fields of them by a dict."""
    lines = run.records(rank).read_text().splitlines()
    for index, value in change.items():
        lines[index] = value if isinstance(value, str) else json.dumps({**json.loads(lines[index]), **value})
    run.records(rank).write_text("\n".join(lines) + "\n")


def test_whole_files_are_read_without_a_problem(run: RunDir) -> None:
    found = read_steps(run)
    assert {rank: [step.global_step for step in steps] for rank, steps in found.by_rank.items()} == {
        0: [0, 1, 2, 3, 4, 5],
        1: [0, 1, 2, 3, 4, 5],
    }
    assert found.problems == ()
    step = found.by_rank[1][3]
    assert step.phase == "steady"
    assert step.profile is not None
    collective = [item for item in step.profile.ranges if item.stream == "allreduce"][1]
    assert collective.metadata is not None
    assert (collective.metadata.group, collective.metadata.seq) == ("default", 2 * 3 + 1)


def test_a_step_without_the_field_was_timed_part_by_part(run: RunDir) -> None:
    record, next_one = (json.loads(line) for line in run.records(0).read_text().splitlines()[3:5])
    whole = {**next_one, "detailed": False, "breakdown": None}
    del record["detailed"]
    edit(run, 0, {3: json.dumps(record), 4: json.dumps(whole)})
    found = read_steps(run)
    assert [step.detailed for step in found.by_rank[0]] == [True, True, True, True, False, True]
    assert found.problems == ()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_loss_that_is_no_number_costs_itself(run: RunDir, value: str) -> None:
    text = run.records(0).read_text()
    run.records(0).write_text(re.sub(r'"loss":[0-9.]+', f'"loss":{value}', text))
    found = read_steps(run)
    assert [step.global_step for step in found.by_rank[0]] == list(range(6))
    assert found.problems == ()


def test_steps_whose_samples_nobody_counted_are_steps_and_zero_is_a_count(run: RunDir) -> None:
    edit(run, 0, {3: {"samples": None}, 4: {"samples": 0}, 5: {"samples": -1}})
    found = read_steps(run)
    assert [step.samples for step in found.by_rank[0]][3:] == [None, 0]
    assert [problem.reason for problem in found.problems] == [
        "line 6 is not usable: step 5 has an impossible time or count"
    ]


def test_a_line_cut_by_a_crash_is_named_and_the_rest_kept(run: RunDir) -> None:
    path = run.records(1)
    path.write_bytes(path.read_bytes()[:-40])
    found = read_steps(run)
    assert [step.global_step for step in found.by_rank[1]] == [0, 1, 2, 3, 4]
    assert [problem.file for problem in found.problems] == ["rank_1_metrics.jsonl"]
    assert found.problems[0].reason.startswith("line 6 is not usable")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{not json", "malformed"),
        ({"rank": 7}, "is of rank 7, not 0"),
        ({"mono_end_ns": 0}, "ends before it starts"),
        ({"samples": "eight"}, "Expected `int | null`"),
        ({"phase": "lunch"}, "phase"),
        ({"detailed": "no"}, "Expected `bool`"),
    ],
)
def test_a_broken_line_costs_that_line(run: RunDir, change: object, said: str) -> None:
    edit(run, 0, {2: change})
    found = read_steps(run)
    assert [step.global_step for step in found.by_rank[0]] == [0, 1, 3, 4, 5]
    assert said in found.problems[0].reason
    assert "line 3" in found.problems[0].reason


def test_parts_that_do_not_sum_to_the_step_are_refused(run: RunDir) -> None:
    record = json.loads(run.records(0).read_text().splitlines()[4])
    record["breakdown"]["host_ns"] += 1
    edit(run, 0, {4: json.dumps(record)})
    found = read_steps(run)
    assert len(found.by_rank[0]) == 5
    total = record["mono_end_ns"] - record["mono_start_ns"]
    assert f"add up to {total + 1} ns, but the step takes {total} ns" in found.problems[0].reason


def test_several_broken_lines_are_one_problem(run: RunDir) -> None:
    edit(run, 0, {1: "x", 3: "y"})
    found = read_steps(run)
    assert len(found.problems) == 1
    assert found.problems[0].reason.startswith("2 lines are not usable; the first is line 2")


def test_only_the_last_attempt_counts(run: RunDir) -> None:
    edit(run, 0, {index: {"attempt": 1} for index in (4, 5)})
    edit(run, 1, {index: {"attempt": 1} for index in range(6)})
    found = read_steps(run)
    assert [step.global_step for step in found.by_rank[0]] == [4, 5]
    assert len(found.by_rank[1]) == 6
    assert "4 records of attempts other than" in found.problems[0].reason


def test_a_rank_with_another_attempt_only_has_no_steps(run: RunDir) -> None:
    assert read_steps(run, attempt=1).by_rank == {}


def test_a_step_written_twice_counts_once_as_written_last(run: RunDir) -> None:
    lines = run.records(0).read_text().splitlines()
    again = json.dumps({**json.loads(lines[2]), "samples": 99})
    run.records(0).write_text("\n".join([*lines, again]) + "\n")
    found = read_steps(run)
    assert [step.samples for step in found.by_rank[0]] == [8, 8, 99, 8, 8, 8]
    assert "1 step occurs more than once" in found.problems[0].reason


def test_an_empty_file_is_a_problem_not_a_rank(run: RunDir) -> None:
    run.records(1).write_text("")
    found = read_steps(run)
    assert list(found.by_rank) == [0]
    assert found.problems[0].reason == "contains no step record"


def test_bytes_that_are_no_text_are_survived(run: RunDir) -> None:
    run.records(1).write_bytes(b"\xff\xfe\x00\n" * 3)
    assert list(read_steps(run).by_rank) == [0]


def test_a_line_nested_without_end_costs_that_line(run: RunDir) -> None:
    edit(run, 0, {2: '{"other": ' + "[" * 100_000})
    found = read_steps(run)
    assert [step.global_step for step in found.by_rank[0]] == [0, 1, 3, 4, 5]
    assert found.problems[0].reason == "line 3 is not usable: nested too deeply"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"world_size": 0}, "rank 0 in a world of 0"),
        ({"world_size": 10**12}, "rank 0 in a world of 1000000000000"),
        ({"samples": -1}, "an impossible time or count"),
        ({"mono_end_ns": 10**30}, "an impossible time or count"),
    ],
)
def test_numbers_that_cannot_be_cost_their_line(run: RunDir, change: object, said: str) -> None:
    edit(run, 0, {2: change})
    found = read_steps(run)
    assert [step.global_step for step in found.by_rank[0]] == [0, 1, 3, 4, 5]
    assert said in found.problems[0].reason


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({"host_ns": -(10**12), "compute_ns": 10**12}, "a part of step 4 is negative"),
        ({"hidden_comm_ns": 10**12}, "communication of step 4 contradicts itself"),
    ],
)
def test_parts_that_cannot_be_are_refused(run: RunDir, moved: dict[str, int], said: str) -> None:
    record = json.loads(run.records(0).read_text().splitlines()[4])
    for name, by in moved.items():
        record["breakdown"][name] += by
    edit(run, 0, {4: json.dumps(record)})
    found = read_steps(run)
    assert len(found.by_rank[0]) == 5
    assert said in found.problems[0].reason


def test_a_step_run_again_in_the_same_file_is_named_and_the_last_counts(run: RunDir) -> None:
    lines = run.records(0).read_text().splitlines()
    again = json.loads(lines[3])
    for name in ("mono_start_ns", "mono_end_ns"):
        again[name] += 10**10
    run.records(0).write_text("\n".join([*lines, json.dumps(again)]) + "\n")
    found = read_steps(run)
    assert found.by_rank[0][3].mono_start_ns == again["mono_start_ns"]
    assert [item.reason for item in found.problems] == [
        "1 step occurs more than once; its last record is used"
    ]


@pytest.mark.parametrize("wanted", [None, "another", "given"])
def test_records_of_another_job_are_left_out_and_named(run: RunDir, wanted: str | None) -> None:
    job = json.loads(run.records(0).read_text().splitlines()[0])["job_id"]
    edit(run, 1, {index: {"job_id": "999", "attempt": 7} for index in range(4)})
    found = read_steps(run, job=job if wanted == "given" else wanted)
    assert [step.global_step for step in found.by_rank[0]] == [0, 1, 2, 3, 4, 5]
    assert [step.global_step for step in found.by_rank[1]] == [4, 5]
    assert [item.reason for item in found.problems] == [f"4 records of job 999, not of {job}, left out"]


def test_a_rank_of_another_job_alone_left_no_records(run: RunDir) -> None:
    job = json.loads(run.records(0).read_text().splitlines()[0])["job_id"]
    edit(run, 1, {index: {"job_id": "999"} for index in range(6)})
    assert sorted(read_steps(run, job=job).by_rank) == [0]
    assert sorted(read_steps(run, job="999").by_rank) == [1]


def test_a_clock_that_goes_back_is_named(run: RunDir) -> None:
    records = [json.loads(line) for line in run.records(1).read_text().splitlines()]
    ahead = records[5]["mono_end_ns"] - records[0]["mono_start_ns"]
    times = ("mono_start_ns", "mono_end_ns")
    edit(run, 1, {at: {name: records[at][name] - ahead for name in times} for at in (4, 5)})
    found = read_steps(run)
    assert len(found.by_rank[1]) == 6
    reason = "a step begins before the previous step ended, because its clock went back"
    assert [(item.file, item.reason) for item in found.problems] == [(run.records(1).name, reason)]
