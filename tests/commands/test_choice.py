from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from aorta.artefacts.io import append_line, read_json, write_json, write_text
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import Manifest, SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands._choice import Chosen, choose, repeats
from aorta.errors import ArtefactError
from tests.support.synthetic import START_WALL_NS, RunSpec, write_run


def run(results: Path, scenario: str, job_id: str, started_s: int = 0) -> RunDir:
    """A short run that began `started_s` after the synthetic ones do."""
    nodes = Scenario(scenario).nodes
    made = write_run(
        results, RunSpec(nodes=nodes, ranks_per_node=1, scenario=scenario, job_id=job_id, steps=2, warmup=1)
    )
    manifest = read_json(made.manifest, Manifest)
    write_json(
        made.manifest,
        msgspec.structs.replace(manifest, started_wall_ns=START_WALL_NS + started_s * 1_000_000_000),
    )
    return made


def submit(
    results: Path,
    stamp: str,
    jobs: dict[str, str],
    *,
    at_s: int = 0,
    executor: Literal["slurm", "local"] = "slurm",
) -> SubmissionDir:
    submission = SubmissionDir(results / f"run_{stamp}")
    for scenario, job_id in jobs.items():
        name = Scenario(scenario)
        write_text(submission.config(name), "{}\n")
        job = SubmittedJob(
            job_id=job_id,
            scenario=scenario,
            nodes=name.nodes,
            run_dir=str(RunDir.of(results, name, job_id).root),
            submitted_wall_ns=START_WALL_NS + at_s * 1_000_000_000,
            executor=executor,
        )
        append_line(submission.jobs, msgspec.json.encode(job).decode())
        RunDir.of(results, name, job_id).root.mkdir(parents=True, exist_ok=True)
    return submission


def taken(results: Path, submission: SubmissionDir | None = None) -> dict[str, str]:
    return {item.scenario.name: item.run.root.name for item in choose(results, submission).chosen}


def test_without_a_submission_the_newest_run_of_each_scenario_is_taken(tmp_path: Path) -> None:
    older = run(tmp_path, "2node", "9", started_s=10)
    run(tmp_path, "2node", "10", started_s=20)
    run(tmp_path, "cpu_2node", "3")
    run(tmp_path, "1node", "4")
    assert taken(tmp_path) == {"1node": "run_4", "2node": "run_10", "cpu_2node": "run_3"}
    chosen = {item.scenario.name: item for item in choose(tmp_path).chosen}
    assert chosen["2node"].older == (older,)


def test_analysing_an_old_run_again_does_not_make_it_the_newest(tmp_path: Path) -> None:
    old = run(tmp_path, "2node", "9", started_s=10)
    run(tmp_path, "2node", "10", started_s=20)
    write_text(old.report, "new")
    os.utime(old.root, ns=(2**62, 2**62))
    assert taken(tmp_path) == {"2node": "run_10"}


def test_the_newest_submission_wins_over_older_runs(tmp_path: Path) -> None:
    run(tmp_path, "2node", "9", started_s=10)
    run(tmp_path, "4node", "8", started_s=11)
    submit(tmp_path, "20250101T000000Z", {"2node": "9"})
    submit(tmp_path, "20250102T000000Z", {"2node": "12"}, at_s=100)
    run(tmp_path / "apart", "2node", "12", started_s=105).root.rename(tmp_path / "2node" / "new")
    (tmp_path / "2node" / "run_12").rmdir()
    (tmp_path / "2node" / "new").rename(tmp_path / "2node" / "run_12")
    assert taken(tmp_path) == {"2node": "run_12", "4node": "run_8"}
    notes = {item.scenario.name: item.note for item in choose(tmp_path).chosen}
    assert notes == {"2node": "", "4node": "not part of the newest submission"}


def test_a_run_by_hand_after_the_submission_replaces_its_job_and_says_so(tmp_path: Path) -> None:
    run(tmp_path, "2node", "9", started_s=10)
    submit(tmp_path, "20250101T000000Z", {"2node": "9"})
    run(tmp_path, "2node", "manual", started_s=50)
    (item,) = choose(tmp_path).chosen
    assert item.run.root.name == "run_manual"
    assert (
        item.note == "run_manual was run by hand after the submission, and replaces run_9 of the submission"
    )


def test_a_named_submission_is_taken_as_it_is(tmp_path: Path) -> None:
    run(tmp_path, "2node", "9", started_s=10)
    run(tmp_path, "1node", "8", started_s=10)
    first = submit(tmp_path, "20250101T000000Z", {"2node": "9"})
    submit(tmp_path, "20250102T000000Z", {"1node": "8"})
    assert taken(tmp_path, first) == {"2node": "run_9"}


def test_jobs_that_wrote_nothing_and_scenarios_without_a_job_are_missing(tmp_path: Path) -> None:
    run(tmp_path, "1node", "1")
    submission = submit(tmp_path, "20250101T000000Z", {"1node": "1", "2node": "2"})
    write_text(submission.config(Scenario("4node")), "{}\n")
    choice = choose(tmp_path)
    assert [item.scenario.name for item in choice.chosen] == ["1node"]
    assert [problem.reason for problem in choice.missing] == [
        "4node: has no job; it was not accepted",
        "2node: job 2 has written nothing: it is waiting, or ended before it started",
    ]


def test_a_scenario_that_an_interruption_left_out_was_not_refused(tmp_path: Path) -> None:
    run(tmp_path, "1node", "1")
    submission = submit(tmp_path, "20250101T000000Z", {"1node": "1"}, executor="local")
    write_text(submission.config(Scenario("2node")), "{}\n")
    assert [item.reason for item in choose(tmp_path).missing] == ["2node: has no job; it was not started"]


def test_a_torn_line_costs_one_job_and_is_named(tmp_path: Path) -> None:
    run(tmp_path, "1node", "1")
    submission = submit(tmp_path, "20250101T000000Z", {"1node": "1"})
    append_line(submission.jobs, '{"job_id": "2", ')
    for choice in (choose(tmp_path), choose(tmp_path, submission)):
        assert [item.scenario.name for item in choice.chosen] == ["1node"]
        assert "line 2 is left out" in choice.missing[0].reason


def test_a_scenario_whose_line_is_torn_is_not_said_to_be_refused(tmp_path: Path) -> None:
    submission = submit(tmp_path, "20250101T000000Z", {"1node": "1"})
    write_text(submission.config(Scenario("2node")), "{}\n")
    reason = "2node: has no job; it was not accepted"
    assert choose(tmp_path).missing[0].reason == reason
    append_line(submission.jobs, '{"job_id": "2", ')
    assert choose(tmp_path).missing[1].reason == ("2node: has no job; it is in none of the readable lines")


def test_a_list_of_jobs_without_a_whole_line_costs_the_list_and_not_the_runs(tmp_path: Path) -> None:
    run(tmp_path, "1node", "1")
    submission = submit(tmp_path, "20250101T000000Z", {"1node": "1"})
    write_text(submission.jobs, '{"job_id": "2", ')
    choice = choose(tmp_path)
    assert [item.scenario.name for item in choice.chosen] == ["1node"]
    assert "line 1" in choice.missing[0].reason
    with pytest.raises(ArtefactError, match="line 1"):
        choose(tmp_path, submission)


def test_a_submission_of_which_nothing_was_accepted_is_named_and_passed_over(tmp_path: Path) -> None:
    run(tmp_path, "1node", "1")
    submit(tmp_path, "20250101T000000Z", {"1node": "1"})
    refused = SubmissionDir(tmp_path / "run_20250102T000000Z")
    for name in ("1node", "2node"):
        write_text(refused.config(Scenario(name)), "{}\n")
    (tmp_path / "run_20250103T000000Z").mkdir()  # not a submission of ours
    said = "submission run_20250102T000000Z has no job, because none of 1node, 2node was accepted"
    choice = choose(tmp_path)
    assert [item.run.root.name for item in choice.chosen] == ["run_1"]
    assert [(problem.file, problem.reason) for problem in choice.missing] == [(str(refused.root), said)]
    named = choose(tmp_path, refused)
    assert (named.chosen, [problem.reason for problem in named.missing]) == ((), [said])


def test_an_older_submission_of_which_nothing_was_accepted_does_not_matter(tmp_path: Path) -> None:
    run(tmp_path, "1node", "1")
    write_text(SubmissionDir(tmp_path / "run_20250101T000000Z").config(Scenario("2node")), "{}\n")
    submit(tmp_path, "20250102T000000Z", {"1node": "1"})
    assert choose(tmp_path).missing == ()


def test_a_folder_that_is_no_submission_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"jobs\.jsonl"):
        choose(tmp_path, SubmissionDir(tmp_path / "2node"))


def test_results_that_were_moved_are_found(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    run(before, "1node", "1")
    submit(before, "20250101T000000Z", {"1node": "1"})
    before.rename(after)
    (item,) = choose(after).chosen
    assert item.run.root == after / "1node" / "run_1"


def test_a_dangling_link_in_a_run_without_manifest_is_passed_over(tmp_path: Path) -> None:
    made = run(tmp_path, "1node", "1")
    made.manifest.unlink()
    (made.root / "latest").symlink_to("nowhere")
    assert [item.run.root.name for item in choose(tmp_path).chosen] == ["run_1"]


def test_repeats_are_earlier_runs_of_the_scenario_by_the_same_code(tmp_path: Path) -> None:
    first, second = run(tmp_path, "2node", "5", started_s=5), run(tmp_path, "2node", "6", started_s=6)
    own = run(tmp_path, "2node", "7", started_s=7)
    run(tmp_path, "2node", "8", started_s=8)
    run(tmp_path, "4node", "1", started_s=1)
    chosen = [Chosen(Scenario("2node"), own)]
    assert repeats(tmp_path, chosen) == [second, first]
    manifest = read_json(first.manifest, Manifest)
    write_json(first.manifest, msgspec.structs.replace(manifest, code_version="another"))
    assert repeats(tmp_path, chosen) == [second]


def test_a_folder_of_another_kind_is_no_run_whatever_its_name(tmp_path: Path) -> None:
    run(tmp_path, "2node", "7")
    (tmp_path / "2node/run_8").symlink_to("..")
    (tmp_path / "2node/run_9").mkdir()
    (tmp_path / "2node/run_9/notes.txt").write_text("mine")
    assert taken(tmp_path) == {"2node": "run_7"}
    (tmp_path / "2node/run_9/rank_0_metrics.jsonl").write_text("")
    assert taken(tmp_path) == {"2node": "run_9"}, "it has no manifest, and is a run that left no step"
