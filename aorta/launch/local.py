"""The same run without Slurm: a scenario's nodes are tasks of submitit's local executor on this machine.

submitit keeps pickles of the call in its folder; that folder is the user's alone (mode 0700), inside the
submission, and goes when the run has ended. After a SIGKILL of the owner, which ends the run, it stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import submitit
from submitit.core.utils import UncompletedJobError

from aorta.artefacts import names
from aorta.artefacts.agents import this_process
from aorta.artefacts.layout import RunDir, Scenario, job_output
from aorta.artefacts.names import LOCAL
from aorta.artefacts.own_program import program_name
from aorta.artefacts.processes import started
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.slurm_environment import clean_environment
from aorta.artefacts.submissions import SubmissionDir
from aorta.launch.lifeline import die_with
from aorta.launch.markers import read_markers
from aorta.launch.plan import LaunchPlan, agent_arguments
from aorta.launch.slurm import JobView
from aorta.launch.states import STATES
from aorta.monitors.gpu import find_gpus

CANCEL_S = 45.0
"""Seconds that a cancelled run may take to end: the agents' own grace, and more for monitors and markers."""

NO_ROOM_BYTES = 64 << 10
"""Least free space in which an agent can write down how it ended."""
OWNER_S = 1.0
"""Seconds between two looks of a task whether the process that started the run still lives."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One run of the node agent per task: what submitit pickles, and calls in every task."""

    argv: tuple[str, ...]
    """The agent's command up to the node index."""
    command: tuple[str, ...]
    """The user's program, or empty."""
    output: str
    project: str
    environment: dict[str, str]
    """Variables that every node's agent gets on top of this machine's."""
    devices: tuple[str, ...]
    """CUDA_VISIBLE_DEVICES of each node."""
    owner: int
    """Process id of who started the run; when that one is gone, the run ends."""
    owner_started: int | None
    """Its start, as `lifeline.started` has it."""

    def __call__(self) -> int:
        """Start this task's agent, hand it the signals meant for it, and give its exit status."""
        node = submitit.JobEnvironment().global_rank
        tail = ["--", *self.command] if self.command else []
        environment = agent_environment(os.environ) | self.environment
        environment["CUDA_VISIBLE_DEVICES"] = self.devices[node]
        child: list[subprocess.Popen[bytes]] = []
        told: list[int] = []

        def forward(number: int, _frame: Any) -> None:
            # The agent takes TERM once; a signal that comes before it exists is kept for it.
            if child and not told:
                child[0].terminate()
            told.append(number)

        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, forward)
        with Path(self.output).open("ab") as output:
            # A session of its own: Ctrl-C in the terminal is for us, and we tell the agent.
            child.append(
                subprocess.Popen(
                    [*self.argv, "--node-index", str(node), *tail],
                    cwd=self.project,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    # Who kills our whole process group does not reach that session.
                    preexec_fn=die_with(os.getpid(), signal.SIGTERM),  # noqa: PLW1509  no thread runs yet
                )
            )
        if told:
            child[0].terminate()
        ended = threading.Event()
        threading.Thread(target=self._watch_owner, args=(ended,), daemon=True).start()
        try:
            return child[0].wait()
        finally:
            ended.set()

    def _watch_owner(self, ended: threading.Event) -> None:
        """Tell this task to end, as the owner would have, once the owner is gone."""
        while not ended.wait(OWNER_S):
            if started(self.owner) is None or started(self.owner) != self.owner_started:
                os.kill(os.getpid(), signal.SIGTERM)
                return


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of a local agent: nothing of an allocation that we sit in, nothing of submitit."""
    return {
        name: value
        for name, value in clean_environment(environment).items()
        if not name.startswith(("SUBMITIT_", "SLURM_"))
    }


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """UUIDs of the NVIDIA GPUs that we may use; empty without a driver.

    Raises:
        RunError: CUDA_VISIBLE_DEVICES cannot be read without guessing.
    """
    found = find_gpus(environment)
    return [gpu.uuid for gpu in found.visible] if found.vendor == "nvidia" else []


def share_gpus(gpus: Sequence[str], nodes: int, per_node: int) -> tuple[str, ...]:
    """CUDA_VISIBLE_DEVICES of each of `nodes` nodes: `per_node` different GPUs each, in order."""
    return tuple(",".join(gpus[node * per_node : (node + 1) * per_node]) for node in range(nodes))


@dataclass(slots=True)
class LocalRun:
    """A scenario that runs, or has run, on this machine."""

    job: SubmittedJob
    _handle: submitit.Job[int]
    _started: float
    _limit_s: int
    _private: Path
    _cancelled: bool = False
    _view: JobView | None = None

    def poll(self) -> JobView:
        """The job's state; the first view with an end is final, and clears up behind the run."""
        if self._view is not None:
            return self._view
        elapsed = int(time.monotonic() - self._started)
        nodes = self.job.nodes
        if not self._handle.done():
            return JobView(self.job.job_id, STATES["RUNNING"], "", elapsed, nodes, "this machine", "local")
        name, reason = self._outcome(elapsed)
        self._view = JobView(self.job.job_id, STATES[name], reason, elapsed, nodes, "this machine", "local")
        shutil.rmtree(self._private, ignore_errors=True)
        return self._view

    def cancel(self) -> None:
        """Tell the agents to end, wait for them, and end by force what is left after `CANCEL_S`."""
        self._cancelled = True
        controller = int(self._handle.job_id)
        deadline = time.monotonic() + CANCEL_S
        if not self._handle.done():
            # submitit's own cancel kills the tasks after a second; the agents need longer for their ranks.
            os.kill(controller, signal.SIGTERM)
        while not self._handle.done() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not self._handle.done():
            self.kill()

    def kill(self) -> None:
        """End every process of the run by force."""
        try:
            controller = psutil.Process(int(self._handle.job_id))
            family = [*controller.children(recursive=True), controller]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        while not self._handle.done():
            time.sleep(0.05)

    def _outcome(self, elapsed: int) -> tuple[str, str]:
        codes: list[int | None] = []
        for index in range(self.job.nodes):
            task = self._handle.task(index)
            # submitit would wait many seconds for the result of a task that was killed; none is to come.
            try:
                codes.append(task.result() if task.paths.result_pickle.exists() else None)
            except UncompletedJobError:
                codes.append(None)
        if all(code == 0 for code in codes):
            return "COMPLETED", ""
        markers = read_markers(RunDir(Path(self.job.run_dir)), self.job.job_id, self.job.nodes)
        wrong = next(index for index, code in enumerate(codes) if code != 0)
        ended = "was killed" if codes[wrong] is None else f"ended with exit code {codes[wrong]}"
        reason = markers.reason or self._no_room() or f"the agent of node{wrong} {ended}"
        if self._cancelled:
            return "CANCELLED", reason
        return ("TIMEOUT" if elapsed >= self._limit_s else "FAILED"), reason

    def _no_room(self) -> str:
        """Return that the disk of the results is full, where it is: nothing that fails can say so on it."""
        free = shutil.disk_usage(self._private).free
        return f"the disk of {self._private.parent} is full" if free < NO_ROOM_BYTES else ""


def start(
    plan: LaunchPlan, submission: SubmissionDir, number: int, gpus: Sequence[str], shared_nodes: int
) -> LocalRun:
    """Start the agents of `plan` and return at once.

    Args:
        plan: the scenario.
        submission: where submitit may keep its files meanwhile.
        number: of the scenario in the submission, from 1; part of the job id.
        gpus: this machine's GPUs; each node gets `plan.gpus_per_node` of them.
        shared_nodes: most nodes of any scenario of this submission: every scenario's ranks then use the same
            number of threads, and the scenarios compare.
    """
    stamp = submission.root.name.removeprefix("run_")
    job_id = f"{LOCAL}{stamp}-{number}"
    results = Path(plan.results)
    run = RunDir.of(results, Scenario(plan.scenario), job_id)
    job = SubmittedJob(
        job_id=job_id,
        scenario=plan.scenario,
        nodes=plan.nodes,
        run_dir=str(run.root),
        submitted_wall_ns=time.time_ns(),
        executor="local",
        owner=this_process(),
        program=program_name(plan.command),
    )
    submission.private.mkdir(mode=0o700, parents=True, exist_ok=True)
    executor = submitit.LocalExecutor(submission.private)
    executor.update_parameters(
        tasks_per_node=plan.nodes,
        timeout_min=plan.time_limit_s / 60,
        signal_delay_s=plan.signal_lead_s,
        stderr_to_stdout=True,
    )
    call = AgentCall(
        argv=_agent_argv(plan, job),
        command=plan.command,
        output=str(job_output(results, plan.scenario, job_id)),
        project=plan.project,
        environment={names.SHARED_NODES: str(shared_nodes)},
        devices=share_gpus(gpus, plan.nodes, plan.gpus_per_node or 0),
        owner=os.getpid(),
        owner_started=started(os.getpid()),
    )
    # Ctrl-C in the terminal reaches every process in front; submitit's controller would answer by killing.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        handle = executor.submit(call)
    finally:
        signal.signal(signal.SIGINT, before)
    limit_s = plan.time_limit_s - plan.signal_lead_s
    return LocalRun(job, handle, time.monotonic(), limit_s, submission.private)


def _agent_argv(plan: LaunchPlan, job: SubmittedJob) -> tuple[str, ...]:
    options = [word for group in agent_arguments(plan) for word in group]
    place = ["--executor", "local", "--job-id", job.job_id, "--nodes", str(job.nodes)]
    wall = ["--submitted-wall-ns", str(job.submitted_wall_ns)]
    return (*plan.aorta, "run-node", *options, *wall, *place)
