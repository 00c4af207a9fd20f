"""What goes wrong in a running job, done to real jobs: nothing measured is lost, nothing stays behind, and
the exit codes tell the truth.

Killed ranks, scancel and a slow loader are in `test_workflow`. One node's clock cannot be stepped alone (it
is the machine's); runs whose clocks differ are made in `tests/metrics`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest, NodeStatus, RunStatus, State
from aorta.cluster import daemons, network, programs
from aorta.cluster.folders import ClusterRecord
from tests.slurm.conftest import RunningCluster
from tests.slurm.test_workflow import AORTA, LONG, ROOT, SHORT, Project, project, steady_steps, until

__all__ = ["project"]  # a fixture

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("no_charts")]

QUICK = {"AORTA_SILENCE_S": "6", "AORTA_PEER_GRACE_S": "3", "AORTA_KILL_GRACE_S": "6"}
"""Times that a site may set, so that these tests need not wait a minute."""


@dataclass(frozen=True)
class Started:
    """A job whose ranks have written some steps."""

    job: str
    run: RunDir
    ranks: int

    @property
    def kept(self) -> int:
        """Steps that are by now in every rank's file and count: however slow the machine and whatever happens
        next, they must be in the analysis.
        """
        return len(steady_steps(self.run, self.ranks))


def start(project: Project, nodes: int, overrides: list[str], *more: str, enough: int = 10) -> Started:
    """Submit one job and wait until `enough` steps beyond the warm-up are in the files of every rank."""
    (job,) = project.submit(f"{nodes}node", overrides, *more)
    started = Started(job, project.run_dir(f"{nodes}node", job), nodes)
    until(f"{enough} steady steps of job {job}", lambda: started.kept >= enough)
    return started


def processes_of(job: str) -> dict[int, str]:
    """Everything that runs with this job's id in its environment: pid to command line."""
    found = {}
    for process in daemons.with_environment({"SLURM_JOB_ID": job}):
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found[process.pid] = b" ".join(words).decode(errors="replace")
    return found


def agent(job: str, node: int) -> int:
    """The pid of a node's agent."""
    tasks = daemons.with_environment({"SLURM_JOB_ID": job, "SLURM_NODEID": str(node)})
    agents = []
    for process in tasks:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if b"run-node" in command and not command.startswith(b"srun"):
            agents.append(process.pid)
    return min(agents)


def monitor(job: str) -> int:
    """The pid of the sampler of a one-node job."""
    (found,) = [pid for pid, words in processes_of(job).items() if " monitor " in words]
    return found


def state(started: Started) -> State:
    return read_json(started.run.status, RunStatus).state


def lost(run: RunDir, node: int) -> str:
    return " | ".join(read_json(run.node(node).status, NodeStatus).lost)


def ended_cleanly(started: Started) -> None:
    """No process of the job is left."""
    until(f"job {started.job} has no process left", lambda: not processes_of(started.job), limit_s=30)


def measured(project: Project, started: Started, at_least: int) -> Analysis:
    """The analysis of the job; made twice with the same result."""
    project.aggregate()
    first = started.run.analysis.read_bytes()
    document = (project.docs / "BOTTLENECK_ANALYSIS.md").read_text()
    project.aggregate()
    assert started.run.analysis.read_bytes() == first
    assert (project.docs / "BOTTLENECK_ANALYSIS.md").read_text() == document
    analysis = read_json(started.run.analysis, Analysis)
    assert analysis.breakdown.steps >= at_least
    return analysis


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("quick")
def test_a_killed_agent_ends_the_job_on_the_other_node_too(project: Project) -> None:
    job = start(project, 2, LONG)
    killed = read_json(job.run.manifest, Manifest).nodes[1].host
    kept = job.kept
    os.kill(agent(job.job, 1), signal.SIGKILL)
    project.wait(expect=1)
    ended_cleanly(job)
    assert state(job) == "failed"
    analysis = measured(project, job, at_least=kept)
    assert analysis.data_quality.ranks_seen == 2
    problems = [problem.reason for problem in analysis.data_quality.problems]
    assert any(killed in reason and "was killed" in reason for reason in problems)


def test_a_killed_monitor_costs_its_samples_only(project: Project) -> None:
    job = start(project, 1, ["training.max_steps=300"], enough=1)
    os.kill(monitor(job.job), signal.SIGKILL)
    project.wait()
    ended_cleanly(job)
    assert state(job) == "completed"
    assert "the monitor ended early" in lost(job.run, 0)
    analysis = measured(project, job, at_least=200)
    assert any("monitor" in problem.reason for problem in analysis.data_quality.problems)


def test_a_stuck_monitor_does_not_keep_the_job(project: Project) -> None:
    job = start(project, 1, ["training.max_steps=300"], enough=1)
    os.kill(monitor(job.job), signal.SIGSTOP)
    project.wait()
    ended_cleanly(job)
    assert state(job) == "completed"
    measured(project, job, at_least=200)


def restart(cluster: RunningCluster, name: str, argv: list[str]) -> None:
    """Start a daemon of the cluster again, as `aorta cluster up` did; the cluster knows it again."""
    folder = cluster.folder
    process = daemons.start(name, argv, programs.environment(folder), folder.log(name))
    record = read_json(folder.record, ClusterRecord)
    others = [known for known in record.processes if known.name != name]
    write_json(folder.record, ClusterRecord(record.settings, [*others, process]))


def daemon(cluster: RunningCluster, *words: str) -> int:
    """The pid of a daemon by the words of its command line."""
    ours = daemons.with_environment({"SLURM_CONF": str(cluster.folder.slurm_conf)})
    for process in ours:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
        if command[0] == words[0] and all(word in command for word in words):
            return process.pid
    raise AssertionError(f"no process {words}")


def idle(cluster: RunningCluster) -> bool:
    lines = cluster.run(["sinfo", "-h", "-N", "-o", "%T"]).split()
    return all(line == "idle" for line in lines)


def test_a_restarted_controller_is_waited_for(project: Project, cluster: RunningCluster) -> None:
    job = start(project, 2, ["training.max_steps=600"])
    waiting = subprocess.Popen(
        [str(AORTA), "wait", "--results", str(project.results), "--interval", "0.5"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    os.kill(daemon(cluster, "slurmctld"), signal.SIGKILL)
    time.sleep(3)
    assert waiting.poll() is None
    restart(cluster, "slurmctld", ["slurmctld", "-D", "-f", str(cluster.folder.slurm_conf)])
    output, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output
    ended_cleanly(job)
    assert state(job) == "completed"
    measured(project, job, at_least=500)
    until("every node is idle", lambda: idle(cluster))


def test_a_restarted_node_daemon_costs_nothing(project: Project, cluster: RunningCluster) -> None:
    job = start(project, 2, ["training.max_steps=600"])
    name = read_json(job.run.manifest, Manifest).nodes[1].host
    os.kill(daemon(cluster, "slurmd", name), signal.SIGKILL)
    time.sleep(2)
    prefix = network.enter_argv(cluster.folder, name) if cluster.settings.netns else []
    restart(cluster, name, [*prefix, "slurmd", "-D", "-f", str(cluster.folder.slurm_conf), "-N", name])
    project.wait()
    ended_cleanly(job)
    assert state(job) == "completed"
    measured(project, job, at_least=500)
    until("every node is idle", lambda: idle(cluster))


@pytest.mark.usefixtures("quick")
def test_a_removed_run_folder_ends_the_job(project: Project) -> None:
    kept = start(project, 1, SHORT)
    project.wait()
    job = start(project, 2, LONG)
    shutil.rmtree(job.run.root)
    project.wait(expect=1)
    ended_cleanly(job)
    by_job = {analysis.job_id: analysis for analysis in project.aggregate().scenarios}
    assert by_job[kept.job].breakdown.steps == 35
    if job.job in by_job:  # by what the agents wrote afterwards
        assert by_job[job.job].verdict.kind == "incomplete"
    accounting = project.run("sacct", "-X", "-n", "-P", "-o", "State", "-j", job.job)
    assert accounting.strip() == "FAILED"


@pytest.fixture
def small_disk(cluster: RunningCluster, tmp_path: Path) -> Iterator[Project]:
    """A project on a disk of 8 MiB, which is a memory file system that all nodes see."""
    # Nodes with namespaces of their own see a later mount only below this folder, which is shared with them.
    folder = network.NETNS_FOLDER / "aorta-test-disk" if cluster.settings.netns else tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    try:
        project = Project(folder)
        project.docs = tmp_path / "docs"
        yield project
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def fill(project: Project) -> Path:
    """A file that takes all the room there is."""
    path = project.folder / "filler"
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))
    return path


def test_a_disk_that_is_full_for_a_while_costs_the_records_of_that_time(small_disk: Project) -> None:
    job = start(small_disk, 2, LONG)
    filler = fill(small_disk)
    until("the records stop", lambda: unchanged(job.run, 2))
    kept = job.kept
    filler.unlink()
    until("the records go on", lambda: job.kept > kept + 10)
    small_disk.run("scancel", job.job)
    small_disk.wait(expect=1)
    ended_cleanly(job)
    assert state(job) == "cancelled"
    assert "was full while the ranks ran and has room again" in lost(job.run, 0)
    analysis = measured(small_disk, job, at_least=kept + 10)
    said = [problem.reason for problem in analysis.data_quality.problems]
    assert any("was full while the ranks ran" in reason for reason in said)
    assert any("records of ranks 0, 1 are missing" in reason for reason in said), said


def unchanged(run: RunDir, ranks: int) -> bool:
    """Whether no rank's file grows within a second."""
    before = [run.records(rank).stat().st_size for rank in range(ranks)]
    time.sleep(1)
    return before == [run.records(rank).stat().st_size for rank in range(ranks)]


def test_training_ends_well_on_a_disk_that_stays_full(small_disk: Project) -> None:
    job = start(small_disk, 2, ["training.max_steps=600"])
    filler = fill(small_disk)
    kept = job.kept
    small_disk.wait()
    ended_cleanly(job)
    assert state(job) == "completed"
    assert "was full while the ranks ran and still is" in lost(job.run, 0)
    filler.unlink()
    analysis = measured(small_disk, job, at_least=kept)
    assert analysis.breakdown.steps < 580
    assert any("still is" in problem.reason for problem in analysis.data_quality.problems)


def test_two_nodes_with_one_host_name(project: Project, cluster: RunningCluster) -> None:
    if not cluster.settings.netns:
        pytest.skip("the nodes share one host name already")
    first = cluster.settings.names[0]
    for name in cluster.settings.names:
        pid = daemon(cluster, "slurmd", name)
        subprocess.run(["nsenter", "--uts", "--target", str(pid), "hostname", first], check=True)
    try:
        job = start(project, 2, SHORT)
        project.wait()
    finally:
        for name in cluster.settings.names:
            pid = daemon(cluster, "slurmd", name)
            subprocess.run(["nsenter", "--uts", "--target", str(pid), "hostname", name], check=True)
    assert state(job) == "completed"
    manifest = read_json(job.run.manifest, Manifest)
    assert [(node.node_index, node.host) for node in manifest.nodes] == [(0, first), (1, first)]
    analysis = measured(project, job, at_least=30)
    assert analysis.data_quality.ranks_seen == 2


def test_two_submissions_at_once_do_not_mix(project: Project) -> None:
    config = ROOT / "config/small.yaml"
    argv = [str(AORTA), "submit", "--results", str(project.results), "--scenarios", "1node"]
    argv += ["--config", str(config), "--override", *SHORT]
    both = [
        subprocess.Popen(argv, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for one in both:
        _, error = one.communicate(timeout=120)
        assert one.returncode == 0, error
    listed = sorted(project.results.glob("run_*/job_ids.txt"))
    assert len(listed) == 2
    jobs = project.job_ids()
    assert len(set(jobs)) == 2
    for path in listed:
        project.run(AORTA, "wait", "--results", project.results, "--job", path.read_text().strip())
    for job in jobs:
        assert read_json(project.run_dir("1node", job).status, RunStatus).state == "completed"


def test_a_report_while_jobs_run_is_of_what_is_there(project: Project) -> None:
    done = start(project, 1, SHORT)
    project.wait()
    job = start(project, 2, ["training.max_steps=700"])
    during = {analysis.job_id: analysis for analysis in project.aggregate().scenarios}
    assert during[done.job].breakdown.steps == 35
    assert during[job.job].data_quality.state == "running"
    project.wait()
    analysis = measured(project, job, at_least=600)
    assert analysis.data_quality.state is not None
    assert state(job) == "completed"


def test_the_time_limit_ends_a_job_with_what_it_measured(project: Project) -> None:
    # The agents are told 90 s before the limit, and Slurm may be 60 s early.
    job = start(project, 1, LONG, "--time", "00:03:00")
    kept = job.kept
    project.wait(expect=1)
    ended_cleanly(job)
    assert state(job) == "timeout"
    assert measured(project, job, at_least=kept).data_quality.state == "timeout"
