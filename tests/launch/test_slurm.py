"""What Slurm's programs say."""

from pathlib import Path

import pytest

from aorta.errors import SchedulerError, SubmitError
from aorta.launch import slurm
from aorta.launch.tools import ToolAnswer
from tests.support.slurm import MISSING, FakeSlurm

BANNER = "*** Welcome to 12345 cores ***\n2026\n\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BANNER + "Submitted batch job 519605\n", ("519605", None)),
        ("75168975;clustername\n", ("75168975", "clustername")),
        (BANNER + "75168975;clustername\n", ("75168975", "clustername")),
        ("42\n", ("42", None)),
        ("Submitted batch job 7 on cluster big\n", ("7", "big")),
    ],
)
def test_job_ids(text: str, expected: tuple[str, str | None]) -> None:
    assert slurm.parse_job_id(text) == expected


@pytest.mark.parametrize("text", ["", "welcome\n", "job 12\n"])
def test_an_answer_without_an_id(text: str) -> None:
    with pytest.raises(SubmitError, match="no job id"):
        slurm.parse_job_id(text)


def test_submission() -> None:
    fake = FakeSlurm({"sbatch": ToolAnswer(0, "7\n")})
    assert slurm.submit(Path("x.sbatch"), fake) == ("7", None)
    assert slurm.submit(Path("x.sbatch"), fake, ["5", "6"]) == ("7", None)
    assert fake.asked == [
        ["sbatch", "--parsable", "x.sbatch"],
        ["sbatch", "--parsable", "--dependency=afterany:5:6", "x.sbatch"],
    ]


def test_a_refusal_says_what_sbatch_said() -> None:
    fake = FakeSlurm(
        {"sbatch": ToolAnswer(1, err="sbatch: error: Batch job submission failed: Invalid qos\n")}
    )
    with pytest.raises(SubmitError, match=r"refused x\.sbatch: Batch job submission failed: Invalid qos"):
        slurm.submit(Path("x.sbatch"), fake)


@pytest.mark.parametrize(
    ("complaint", "todo"),
    [
        ("Invalid account or account/partition combination specified", "name one with --account"),
        ("Invalid qos specification", "use --dry-run to see the script"),
    ],
)
def test_a_refusal_says_what_to_do(complaint: str, todo: str) -> None:
    fake = FakeSlurm(
        {"sbatch": ToolAnswer(1, err=f"sbatch: error: Batch job submission failed: {complaint}\n")}
    )
    with pytest.raises(SubmitError) as refused:
        slurm.submit(Path("x.sbatch"), fake)
    assert todo in refused.value.hint


def test_squeue_in_one_call() -> None:
    rows = "1|RUNNING|1:02|2|n[1-2]|None\n2|PENDING|0:00|4||Resources, or so|x\n9|RUNNING|1:00|1|n1|None\n"
    fake = FakeSlurm({"squeue": ToolAnswer(0, rows)})
    views = slurm.squeue(["1", "2", "3"], fake)
    assert views is not None
    assert set(views) == {"1", "2"}
    assert (views["1"].elapsed_s, views["1"].nodes, views["1"].node_list) == (62, 2, "n[1-2]")
    assert (views["1"].reason, views["2"].reason) == ("", "Resources, or so|x")
    assert len(fake.asked) == 1
    assert "1,2,3" in fake.asked[0]


def test_a_job_that_squeue_forgot_is_an_answer_and_silence_is_none() -> None:
    forgot = ToolAnswer(1, err="slurm_load_jobs error: Invalid job id specified\n")
    assert slurm.squeue(["1"], FakeSlurm({"squeue": forgot})) == {}
    for silent in (MISSING, ToolAnswer(1, err="Unable to contact slurm controller")):
        assert slurm.squeue(["1"], FakeSlurm({"squeue": silent})) is None


def test_the_tasks_of_an_array_are_those_of_the_queue_and_of_accounting() -> None:
    queued = ToolAnswer(0, "7_2\n7_10\n")  # 7_0 and 7_1 have ended, and the queue has forgotten them
    accounted = ToolAnswer(0, "7_0\n7_1\n7_2\n7_[3-4%2]\n")
    fake = FakeSlurm({"squeue": queued, "sacct": accounted})
    assert slurm.array_tasks("7", fake) == ["7_0", "7_1", "7_2", "7_3", "7_4", "7_10"]
    assert slurm.array_tasks("7", FakeSlurm({"squeue": queued, "sacct": MISSING})) == ["7_2", "7_10"]
    # Neither a plain job nor one task is an array.
    assert (
        slurm.array_tasks("7", FakeSlurm({"squeue": ToolAnswer(0, "7\n"), "sacct": ToolAnswer(0, "7\n")}))
        == []
    )
    assert slurm.array_tasks("7_2", FakeSlurm({})) == []


def sacct_rows(*rows: tuple[str, str, str]) -> ToolAnswer:
    return ToolAnswer(0, "".join(f"{job}|{submit}|{state}|90|2|n[1-2]|0:0\n" for job, submit, state in rows))


def test_of_requeued_attempts_the_last_decides() -> None:
    attempts = [("5", f"2026-01-01T00:0{minute}:00", "REQUEUED") for minute in range(4)]
    rows = sacct_rows(*attempts, ("5", "2026-01-01T00:04:00", "COMPLETED"))
    views = slurm.sacct(["5"], FakeSlurm({"sacct": rows}))
    assert views is not None
    assert views["5"].state.name == "COMPLETED"
    assert (views["5"].elapsed_s, views["5"].nodes) == (90, 2)


def test_the_last_attempt_is_the_one_submitted_last_whatever_the_order() -> None:
    rows = sacct_rows(("5", "2026-01-01T00:04:00", "FAILED"), ("5", "2026-01-01T00:00:00", "COMPLETED"))
    views = slurm.sacct(["5"], FakeSlurm({"sacct": rows}))
    assert views is not None
    assert views["5"].state.name == "FAILED"


def test_accounting_shows_who_cancelled_and_the_exit_code() -> None:
    rows = ToolAnswer(
        0,
        "5|t|CANCELLED by 1000|0|4|None assigned|0:0\n"
        "6|t|FAILED|1|1|n1|3:0\n"
        "banner\n"
        "5.batch|t|FAILED|1|1|n1|1:0\n",
    )
    views = slurm.sacct(["5", "6"], FakeSlurm({"sacct": rows}))
    assert views is not None
    assert (views["5"].state.name, views["5"].node_list, views["5"].elapsed_s) == ("CANCELLED", "", 0)
    assert views["6"].reason == "exit code 3:0"


def test_disabled_accounting_is_no_answer() -> None:
    disabled = ToolAnswer(1, err="Slurm accounting storage is disabled\n")
    assert slurm.sacct(["5"], FakeSlurm({"sacct": disabled})) is None
    assert slurm.sacct(["5"], FakeSlurm({"sacct": ToolAnswer(0, "")})) == {}


def test_one_job_by_the_controller() -> None:
    text = "JobId=5 JobState=FAILED Reason=NonZeroExitCode RunTime=00:01:01 NodeList=n[1-2] NumNodes=2 X=1"
    view = slurm.scontrol(["5"], FakeSlurm({"scontrol": ToolAnswer(0, text)}))["5"]
    assert (view.state.name, view.reason, view.elapsed_s, view.nodes) == ("FAILED", "NonZeroExitCode", 61, 2)
    assert slurm.scontrol(["6"], FakeSlurm({"scontrol": ToolAnswer(0, text)})) == {}
    assert slurm.scontrol(["5"], FakeSlurm({"scontrol": ToolAnswer(1, err="Invalid job id")})) == {}


def test_cancelling_an_ended_job_is_no_error_and_silence_is_one() -> None:
    slurm.cancel(["5"], FakeSlurm({"scancel": ToolAnswer(1, err="Job/step already completing or completed")}))
    with pytest.raises(SchedulerError, match="Access denied"):
        slurm.cancel(["5"], FakeSlurm({"scancel": ToolAnswer(1, err="scancel: error: Access denied")}))
