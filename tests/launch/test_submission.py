"""A submission on disk."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aorta.artefacts.layout import Scenario
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.config.load import load_config
from aorta.errors import ArtefactError, ConfigError, PlanError, SubmitError
from aorta.launch import submission as module
from aorta.launch.plan import LaunchPlan
from aorta.launch.submission import (
    choose_config,
    find_aorta,
    moved,
    new_submission,
    open_submission,
    resolve_configs,
    submit_aggregate,
    submit_all,
)
from aorta.launch.submitted import newest_submission, read_jobs
from aorta.launch.tools import ToolAnswer
from tests.support.slurm import cluster


def plans(results: Path) -> list[LaunchPlan]:
    blank = LaunchPlan(
        scenario="1node",
        nodes=1,
        aorta=("/venv/bin/aorta",),
        project="/project",
        results=str(results),
        config="c.yaml",
        output=str(results / "x_%j.out"),
        time_limit="30",
        time_limit_s=1800,
    )
    return [replace(blank, scenario=f"{nodes}node", nodes=nodes) for nodes in (1, 2, 4)]


def opened(tmp_path: Path) -> SubmissionDir:
    submission = new_submission(tmp_path)
    open_submission(submission, {})
    return submission


def test_each_job_is_on_record_before_the_next_is_tried(tmp_path: Path) -> None:
    submission = opened(tmp_path)
    seen: list[str] = []

    def sbatch(argv: Sequence[str]) -> ToolAnswer:
        seen.append(submission.job_ids.read_text() if submission.job_ids.exists() else "")
        return ToolAnswer(0, f"{101 + len(seen)}\n")

    told: list[SubmittedJob] = []
    jobs = submit_all(plans(tmp_path), submission, cluster(sbatch=sbatch), told.append)
    assert seen == ["", "102\n", "102\n103\n"]
    assert submission.job_ids.read_text() == "102\n103\n104\n"
    assert read_jobs(submission) == jobs == told
    assert [Path(job.run_dir) for job in jobs] == [
        tmp_path / "1node" / "run_102",
        tmp_path / "2node" / "run_103",
        tmp_path / "4node" / "run_104",
    ]
    assert all(Path(job.run_dir).is_dir() for job in jobs)
    assert "--nodes=4" in submission.script(Scenario("4node")).read_text()


def test_a_refused_third_job_loses_nothing(tmp_path: Path) -> None:
    submission = opened(tmp_path)
    replies = iter(
        [
            ToolAnswer(0, "11\n"),
            ToolAnswer(0, "12\n"),
            ToolAnswer(1, err="sbatch: error: QOSMaxSubmitJobPerUserLimit\n"),
        ]
    )
    with pytest.raises(SubmitError) as caught:
        submit_all(plans(tmp_path), submission, cluster(sbatch=lambda argv: next(replies)), lambda job: None)
    assert caught.value.exit_code == 3
    message = str(caught.value)
    assert "4node.sbatch: QOSMaxSubmitJobPerUserLimit" in message
    assert "1node (11), 2node (12)" in message
    assert submission.job_ids.read_text() == "11\n12\n"
    assert [job.job_id for job in read_jobs(submission)] == ["11", "12"]


def test_a_refused_first_job_leaves_no_submission_to_wait_for(tmp_path: Path) -> None:
    submission = opened(tmp_path)
    with pytest.raises(SubmitError) as caught:
        submit_all(plans(tmp_path), submission, cluster(sbatch=ToolAnswer(1, err="no")), lambda job: None)
    assert "accepted before" not in str(caught.value)
    with pytest.raises(ArtefactError, match="no submission"):
        newest_submission(tmp_path)


def test_one_after_another(tmp_path: Path) -> None:
    fake = cluster()
    submit_all(plans(tmp_path), opened(tmp_path), fake, lambda job: None, one_after_another=True)
    assert [argv[2:-1] for argv in fake.asked] == [
        [],
        ["--dependency=afterany:101"],
        ["--dependency=afterany:102"],
    ]
    fake = cluster()
    submit_all(plans(tmp_path), new_submission(tmp_path), fake, lambda job: None)
    assert [argv[2:-1] for argv in fake.asked] == [[], [], []]


def test_the_analysis_waits_for_every_job(tmp_path: Path) -> None:
    fake, submission = cluster(), opened(tmp_path)
    jobs = submit_all(plans(tmp_path), submission, fake, lambda job: None)
    assert submit_aggregate(plans(tmp_path), jobs, submission, Path("/docs"), fake) == "104"
    assert "--dependency=afterany:101:102:103" in fake.asked[-1]
    assert submission.job_ids.read_text() == "101\n102\n103\n"


def test_names_of_submissions_sort_by_time_and_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.time, "strftime", lambda *_: "20260101T000000Z")
    roots = []
    for _ in range(3):
        submission = new_submission(tmp_path)
        assert not submission.root.exists()
        open_submission(submission, {})
        roots.append(submission.root.name)
    assert roots == sorted(roots)
    assert len(set(roots)) == 3


def test_two_submissions_with_the_same_name_get_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.time, "strftime", lambda *_: "20260101T000000Z")
    first = second = new_submission(tmp_path)
    assert open_submission(first, {}) == first
    opened = open_submission(second, {})
    assert opened.root.name == "run_20260101T000000Z-2"
    assert opened.root.is_dir()
    assert [plan.config for plan in moved(plans(tmp_path), opened)] == [
        str(opened.root / f"{nodes}node.yaml") for nodes in (1, 2, 4)
    ]


def test_what_cannot_be_recorded_stops_no_other_job(tmp_path: Path) -> None:
    submission = opened(tmp_path)
    (tmp_path / "2node").write_text("")
    told: list[SubmittedJob] = []
    with pytest.raises(SubmitError) as caught:
        submit_all(plans(tmp_path), submission, cluster(), told.append)
    assert "job 102 was accepted, but is not fully recorded" in caught.value.message
    assert str(tmp_path / "2node" / "run_102") in caught.value.message
    assert "aorta wait --job ID" in caught.value.hint
    assert submission.job_ids.read_text() == "101\n102\n103\n"
    assert read_jobs(submission) == told
    assert len(told) == 3


def test_a_record_that_cannot_be_written_stops_no_other_job(tmp_path: Path) -> None:
    submission = opened(tmp_path)
    submission.job_ids.mkdir()
    with pytest.raises(SubmitError) as caught:
        submit_all(plans(tmp_path), submission, cluster(), lambda job: None)
    assert all(f"job {number} was accepted" in caught.value.message for number in (101, 102, 103))
    assert [job.job_id for job in read_jobs(submission)] == ["101", "102", "103"]


def test_no_job_is_submitted_before_every_script_is_written(tmp_path: Path) -> None:
    submission, fake = opened(tmp_path), cluster()
    submission.script(Scenario("4node")).mkdir()
    with pytest.raises(PlanError, match=r"4node\.sbatch"):
        submit_all(plans(tmp_path), submission, fake, lambda job: None)
    assert fake.asked == []


def test_the_newest_submission_with_jobs(tmp_path: Path) -> None:
    for name in ("run_1", "run_2", "run_3"):
        (tmp_path / name).mkdir()
    (tmp_path / "run_2" / "jobs.jsonl").write_text("")
    assert newest_submission(tmp_path).root.name == "run_2"


@pytest.mark.parametrize(
    "line",
    [
        b'{"job_id": "2", ',
        b"\xff",
        b'{"job_id":"../2","scenario":"1node","nodes":1,"run_dir":"/r","submitted_wall_ns":1,"executor":"slurm"}',
        b'{"job_id":"2","scenario":"../x","nodes":1,"run_dir":"/r","submitted_wall_ns":1,"executor":"slurm"}',
    ],
)
def test_a_line_that_is_no_job_costs_itself_and_is_named(tmp_path: Path, line: bytes) -> None:
    submission = opened(tmp_path)
    whole = submit_all(plans(tmp_path), submission, cluster(), lambda job: None)
    skipped: list[str] = []
    assert read_jobs(submission, skipped.append) == whole
    assert skipped == []
    first, *rest = submission.jobs.read_bytes().splitlines()
    submission.jobs.write_bytes(b"\n".join([first, line, *rest]))
    assert read_jobs(submission, skipped.append) == whole
    assert [message.partition(" is left out")[0] for message in skipped] == [f"{submission.jobs}, line 2"]


def test_a_broken_record_is_named_by_line(tmp_path: Path) -> None:
    submission = opened(tmp_path)
    submission.jobs.write_text("{}\n")
    with pytest.raises(ArtefactError, match="line 1"):
        read_jobs(submission)
    with pytest.raises(ArtefactError, match=r"jobs\.jsonl"):
        read_jobs(SubmissionDir(tmp_path / "none"))


def test_the_snapshot_is_what_the_overrides_made(tmp_path: Path) -> None:
    given = tmp_path / "c.yaml"
    given.write_text("training: {max_steps: 7}\n")
    scenarios = [Scenario("2node"), Scenario("cpu_2node")]
    configs = resolve_configs(scenarios, given, ["training.batch_size=3"])
    submission = new_submission(tmp_path / "results")
    open_submission(submission, configs)
    plain, on_cpu = (load_config(submission.config(scenario)) for scenario in scenarios)
    assert (plain.training.max_steps, plain.training.batch_size, plain.training.device) == (7, 3, "auto")
    assert (on_cpu.training.device, on_cpu.distributed.backend) == ("cpu", "gloo")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="file"):
        open_submission(new_submission(tmp_path / "file"), {})


def test_a_configuration_that_is_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"config/dcrnn\.yaml does not exist") as refused:
        choose_config(Path("config/dcrnn.yaml"), gpus=False)
    named = refused.value.hint.removeprefix("aorta's own configuration is ").removesuffix(": use that one")
    assert choose_config(Path(named), gpus=False)[0] == Path(named)
    with pytest.raises(ConfigError) as refused:
        choose_config(Path("config/mine.yaml"), gpus=False)
    assert refused.value.hint == "name a file with --config"


def test_the_configuration_follows_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"config/mine\.yaml does not exist"):
        choose_config(Path("config/mine.yaml"), gpus=False)
    # Without one of the user's own, the one that came with aorta.
    assert choose_config(None, gpus=False) == (Path(__file__).parents[2] / "config/small.yaml", "no GPUs")
    (tmp_path / "config").mkdir()
    for name in ("default", "small", "mine"):
        (tmp_path / "config" / f"{name}.yaml").write_text("")
    assert choose_config(None, gpus=False) == (Path("config/small.yaml"), "no GPUs")
    assert choose_config(None, gpus=True) == (Path("config/default.yaml"), "GPUs")
    assert choose_config(Path("config/mine.yaml"), gpus=True)[0] == Path("config/mine.yaml")


def test_jobs_call_the_script_beside_this_python_or_else_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    beside = tmp_path / "aorta"
    beside.write_text("")
    monkeypatch.setattr(module.sys, "executable", str(python))
    assert find_aorta() == (str(beside),)
    beside.unlink()
    # Another one on PATH may be of another version.
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert find_aorta() == (str(python), "-m", "aorta")
