"""`aorta profile`: the order of things, with stand-ins for the runs and the report."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aorta import cli
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands import _scenarios, profile
from aorta.commands.profile import gpus_per_node
from aorta.errors import ArtefactError, PlanError
from aorta.launch import local
from aorta.launch.plan import LaunchPlan
from aorta.launch.slurm import JobView
from aorta.launch.states import STATES
from aorta.launch.submitted import read_jobs


@dataclass
class FakeRun:
    """A run that is over after one look, in the state given."""

    job: SubmittedJob
    ends: str
    looks: int = 0
    cancelled: bool = False

    def poll(self) -> JobView:
        self.looks += 1
        name = "CANCELLED" if self.cancelled else self.ends if self.looks > 1 else "RUNNING"
        if name in ("SIGINT", "SIGTERM", "SIGHUP"):
            signal.raise_signal(getattr(signal, name))
            name = "COMPLETED"  # where the signal is ignored
        return JobView(self.job.job_id, STATES[name], "" if name == "COMPLETED" else "why", 3)

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Machine:
    """What was started and what was reported."""

    ends: dict[str, str] = field(default_factory=dict)
    started: list[tuple[str, int]] = field(default_factory=list)
    runs: list[FakeRun] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def start(
        self, plan: LaunchPlan, submission: SubmissionDir, number: int, gpus: list[str], most: int
    ) -> FakeRun:
        job = SubmittedJob(
            job_id=f"local-{number}",
            scenario=plan.scenario,
            nodes=plan.nodes,
            run_dir=f"{plan.results}/{plan.scenario}/run_local-{number}",
            submitted_wall_ns=1,
            executor="local",
        )
        self.started.append((plan.scenario, most))
        self.runs.append(FakeRun(job, self.ends.get(plan.scenario, "COMPLETED")))
        return self.runs[-1]

    def aggregate(
        self, results: Path, docs: Path, *, submission: SubmissionDir, show: Callable[[str], object]
    ) -> None:
        self.reported = [job.scenario for job in read_jobs(submission)]
        show(f"report: {docs / 'BOTTLENECK_ANALYSIS.md'}\nverdict: all is well")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.yaml").write_text("training: {max_steps: 3}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AORTA_CONFIG", raising=False)
    monkeypatch.delenv("AORTA_GPUS_PER_NODE", raising=False)
    monkeypatch.setattr(profile, "POLL_S", 0.0)
    monkeypatch.setattr(local, "visible_gpus", lambda environment: [])
    monkeypatch.setattr(local, "start", made.start)
    monkeypatch.setattr(_scenarios, "run_aggregate", made.aggregate)
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.group, ["profile", *words], standalone_mode=False)


def test_the_scenarios_one_after_another_and_the_verdict_last(machine: Machine) -> None:
    result = run()
    assert result.exception is None
    assert result.return_value == 0
    assert machine.started == [("1node", 4), ("2node", 4), ("4node", 4)]
    assert machine.reported == ["1node", "2node", "4node"]
    lines = result.output.splitlines()
    assert lines[0] == "configuration: config/small.yaml (no GPUs)"
    assert lines.pop(1).startswith("warning: training.max_steps is 3, ")
    assert lines[1] == "1node: COMPLETED after 3 s"
    assert lines[-2:] == ["report: results/BOTTLENECK_ANALYSIS.md", "verdict: all is well"]


def test_a_failed_scenario_does_not_stop_the_others_and_shows_in_the_status(machine: Machine) -> None:
    machine.ends["1node"] = "FAILED"
    result = run("--nodes", "1,2")
    assert result.return_value == 1
    assert machine.reported == ["1node", "2node"]
    assert "1node: FAILED after 3 s: why" in result.output
    assert "profile_1node_local-1.out" in result.output


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_running_scenario_and_still_reports(machine: Machine, name: str) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    machine.ends["2node"] = name
    result = run()
    assert result.return_value == 128 + number
    assert [item.cancelled for item in machine.runs] == [False, True]
    assert machine.reported == ["1node", "2node"]
    assert signal.getsignal(number) is before


def test_a_signal_while_a_run_starts_ends_that_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any) -> FakeRun:
        signal.raise_signal(signal.SIGTERM)
        return machine.start(*arguments)

    monkeypatch.setattr(local, "start", start)
    assert run().return_value == 128 + 15
    assert [item.cancelled for item in machine.runs] == [True]


def test_under_nohup_a_hang_up_changes_nothing(machine: Machine) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        machine.ends["1node"] = "SIGHUP"
        assert run("--nodes", "1").return_value == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_does_not_go_on_alone_when_something_goes_wrong(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ArtefactError("no space left")

    monkeypatch.setattr("aorta.launch.submission.record", broken)
    assert isinstance(run().exception, ArtefactError)
    assert [item.cancelled for item in machine.runs] == [True]


def test_gpus_are_shared_equally_or_not_at_all() -> None:
    eight = [str(index) for index in range(8)]
    assert gpus_per_node(None, eight, 4) == 2
    assert gpus_per_node(None, eight[:3], 4) == 0
    assert gpus_per_node(None, [], 4) == 0
    assert gpus_per_node(1, eight, 4) == 1
    with pytest.raises(PlanError, match="4 nodes with 4 GPUs each are 16 GPUs; this machine has 8"):
        gpus_per_node(4, eight, 4)
