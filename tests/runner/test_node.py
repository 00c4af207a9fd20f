"""Real runs on this machine: agents as processes, ranks under torchrun and gloo."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import Manifest, NodeInfo, RunStatus
from tests.runner.test_processes import gone, until
from tests.support.nsys import SECRET, Export, plant

pytest.importorskip("torch", reason="the agent starts torchrun")

TOY = Path(__file__).with_name("toy.py")
LONG = 100_000
LIMIT_S = 120


class Job:
    """Agents of one run, ended with the test."""

    def __init__(self, folder, scenario="cpu_2node", **environ):
        self.folder, self.scenario, self.agents = folder, scenario, []
        self.environ = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "AORTA_"))
            },
            "AORTA_GATHER_TIMEOUT_S": "60",
            "AORTA_KILL_GRACE_S": "10",
            "AORTA_PEER_GRACE_S": "1",
            **environ,
        }

    def start(self, node_index, nodes, *extra, steps=5, behaviour="", options=()):
        argv = [sys.executable, "-m", "aorta", "run-node", "--scenario", self.scenario, "--executor", "local"]
        argv += ["--results", str(self.folder / "results"), "--job-id", "j", "--nodes", str(nodes)]
        argv += ["--node-index", str(node_index), *options]
        return self._launch([*argv, *self._program(steps, behaviour), *extra])

    def start_in_slurm(self, attempt, steps=5):
        """One node whose place comes from Slurm's variables alone."""
        self.environ |= {
            "SLURM_JOB_ID": "j",
            "SLURM_NODEID": "0",
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_RESTART_COUNT": str(attempt),
            "SLURMD_NODENAME": "n0",
        }
        argv = [sys.executable, "-m", "aorta", "run-node", "--scenario", self.scenario]
        return self._launch([*argv, "--results", str(self.folder / "results"), *self._program(steps, "")])

    def _program(self, steps, behaviour):
        return ["--", str(TOY), str(self.folder), str(steps), *([behaviour] if behaviour else [])]

    def _launch(self, argv):
        log = (self.folder / f"agent{len(self.agents)}.out").open("wb")
        with log:
            agent = subprocess.Popen(argv, env=self.environ, stdout=log, stderr=subprocess.STDOUT)
        self.agents.append(agent)
        return agent

    def running(self, ranks):
        """Wait until so many ranks are in their loop; their process ids."""
        files = [self.folder / f"pid{rank}" for rank in range(ranks)]
        until(
            lambda: (
                all(path.exists() for path in files) or any(agent.poll() is not None for agent in self.agents)
            )
        )
        assert all(path.exists() for path in files), self.output(0)
        return [int(path.read_text()) for path in files]

    def wait(self):
        return [agent.wait(LIMIT_S) for agent in self.agents]

    def output(self, index):
        return (self.folder / f"agent{index}.out").read_text()

    @property
    def run(self):
        return RunDir.of(self.folder / "results", Scenario(self.scenario), "j")

    @property
    def status(self):
        return read_json(self.run.status, RunStatus)


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    for agent in job.agents:
        if agent.poll() is None:
            agent.kill()
            agent.wait()


def test_two_nodes_from_start_to_end(job):
    for index in range(2):
        job.start(index, 2)
    assert job.wait() == [0, 0], job.output(0) + job.output(1)
    status = job.status
    assert (status.state, status.nodes_missing) == ("completed", [])
    assert [(rank.rank, rank.exit_code) for node in status.nodes for rank in node.ranks] == [(0, 0), (1, 0)]
    assert [node.lost for node in status.nodes] == [[], []]
    manifest = read_json(job.run.manifest, Manifest)
    assert (manifest.world_size, len(manifest.nodes), manifest.shared_machine) == (2, 2, True)
    assert manifest.plan.command[-2:] == [str(job.folder), "5"]
    for index in range(2):
        node = job.run.node(index)
        assert (node.logs / f"rank{index}/stdout.log").read_text() == f"rank {index} of 2: sum 3\n"
        assert f"[rank{index}] rank {index} of 2: sum 3" in job.output(index)
        assert len(node.cpu_csv.read_text().splitlines()) > 1
    assert f"AORTA_RUN_DIR={job.run.root.resolve()}" in (job.folder / "env1.txt").read_text().splitlines()
    assert job.run.config.exists()
    assert "node 1:" in job.run.job_metadata.read_text()
    assert (job.folder / "results/cpu_2node_j").resolve() == job.run.root.resolve()


def test_a_killed_rank_is_named_and_the_other_node_ends_too(job):
    # `alone`: the ranks exchange nothing, so only the marker tells node 0 of the failure.
    for index in range(2):
        job.start(index, 2, steps=LONG, behaviour="alone")
    pids = job.running(2)
    os.kill(pids[1], signal.SIGKILL)
    codes = job.wait()
    assert 0 not in codes
    status = job.status
    assert status.state == "failed"
    first, second = status.nodes
    assert [(rank.rank, rank.signal, rank.exit_code) for rank in second.ranks] == [(1, "SIGKILL", None)]
    assert second.lost == ["first failure on this node: rank 1 was killed by SIGKILL"]
    assert first.state == "failed"
    assert any("node 1" in words and "ended before: failed" in words for words in first.lost)
    assert gone(pids[0])


def test_an_error_of_a_rank_is_kept(job):
    job.start(0, 1, steps=LONG, behaviour="fail1", options=["--procs-per-node", "2"])
    assert job.wait() == [1]
    (node,) = job.status.nodes
    assert node.ranks[1].error == "ValueError: the toy breaks here"
    assert node.ranks[1].exit_code == 1


def test_what_the_runtime_said_before_it_aborted_is_kept(job):
    job.start(0, 1, behaviour="abort")
    assert job.wait() == [1]
    (node,) = job.status.nodes
    (rank,) = node.ranks
    assert (rank.signal, rank.error) == ("SIGABRT", "terminate called without an active exception")


def finished(job, index):
    """Wait until the ranks of a node have ended, and a little longer."""
    until(lambda: f"rank {index} of 2" in job.output(index))
    time.sleep(1)


def test_a_node_that_has_finished_is_not_failed_by_another_nor_kept_waiting(job):
    job.environ["AORTA_PEER_GRACE_S"] = str(LIMIT_S)
    for index in range(2):
        job.start(index, 2, steps=LONG, behaviour="early0")
    pids = job.running(2)
    finished(job, 0)
    os.kill(pids[1], signal.SIGKILL)
    assert job.wait() == [0, 1]
    status = job.status
    assert status.state == "failed"
    first, second = status.nodes
    assert (first.state, first.exit_code, first.lost) == ("completed", 0, [])
    assert [(rank.exit_code, rank.signal) for rank in first.ranks] == [(0, None)]
    assert second.state == "failed"


def test_a_finished_node_that_is_cancelled_keeps_what_its_ranks_returned(job):
    job.environ["AORTA_KILL_GRACE_S"] = str(LIMIT_S)
    agents = [job.start(index, 2, steps=LONG, behaviour="early0") for index in range(2)]
    job.running(2)
    finished(job, 0)
    for agent in agents:
        agent.terminate()
    assert job.wait() == [143, 143]
    first, second = job.status.nodes
    assert (first.state, second.state, first.lost) == ("cancelled", "cancelled", [])
    assert [rank.exit_code for rank in first.ranks] == [0]


@pytest.mark.parametrize(("told", "state", "code"), [(True, "cancelled", 143), (False, "failed", 1)])
def test_a_rank_that_ends_on_the_signal_before_its_agent_is_told(job, told, state, code):
    agent = job.start(0, 1, steps=LONG)
    (pid,) = job.running(1)
    os.kill(pid, signal.SIGTERM)
    if told:
        until(lambda: gone(pid))
        time.sleep(0.5)
        agent.terminate()
    assert job.wait() == [code]
    (node,) = job.status.nodes
    assert (node.state, node.ranks[0].signal) == (state, "SIGTERM")


def test_a_killed_agent_leaves_no_process_and_the_other_one_notices(job):
    job.environ["AORTA_SILENCE_S"] = "3"
    agents = [job.start(index, 2, steps=LONG, behaviour="alone") for index in range(2)]
    pids = job.running(2)
    children = [child.pid for child in psutil.Process(agents[1].pid).children(recursive=True)]
    assert {pids[1], monitor_of(agents[1]).pid} < set(children)  # torchrun is the third
    agents[1].kill()
    assert agents[0].wait(LIMIT_S) == 1
    assert agents[1].wait() == -signal.SIGKILL
    until(lambda: all(gone(pid) for pid in children))
    first, second = job.status.nodes
    assert (first.state, second.state) == ("failed", "running")
    assert first.lost[-1] == f"node 1's agent ({second.host}) went silent for 3 s"
    assert gone(pids[0])


def test_sigterm_ends_the_run_as_cancelled_and_a_second_one_changes_nothing(job):
    agent = job.start(0, 1, steps=LONG)
    pids = job.running(1)
    until(job.run.node(0).cpu_csv.exists)
    agent.terminate()
    monitor_of(agent).terminate()  # Slurm signals every process of a step
    time.sleep(0.2)
    agent.terminate()
    assert job.wait() == [128 + signal.SIGTERM]
    (node,) = job.status.nodes
    assert node.lost == []
    assert (node.state, node.signal, node.exit_code) == ("cancelled", "SIGTERM", 143)
    assert gone(pids[0])


def test_a_signal_near_the_jobs_end_is_its_time_limit(job):
    job.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 60)
    agent = job.start(0, 1, steps=LONG)
    job.running(1)
    agent.send_signal(signal.SIGTERM)
    assert job.wait() == [143]
    assert job.status.state == "timeout"


def test_the_other_nodes_know_the_end_from_node_0(job):
    squeue = job.folder / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho 1:00\n")
    squeue.chmod(0o755)
    job.environ |= {"PATH": f"{squeue.parent}:{job.environ['PATH']}", "SLURM_JOB_ID": "7"}
    agents = [job.start(index, 2, steps=LONG, behaviour="alone") for index in range(2)]
    job.running(2)
    agents[1].terminate()
    until(lambda: agents[1].poll() is not None)
    agents[0].terminate()
    assert job.wait() == [143, 143]
    assert job.status.nodes[1].state == "timeout"


def test_a_rank_that_ignores_sigterm_is_killed(job):
    job.environ["AORTA_KILL_GRACE_S"] = "2"
    agent = job.start(0, 1, steps=LONG, behaviour="stubborn")
    pids = job.running(1)
    agent.terminate()
    assert job.wait() == [143]
    (node,) = job.status.nodes
    assert node.state == "cancelled"
    assert node.lost == ["ranks did not end within 2 s and were killed"]
    assert gone(pids[0])


def test_a_missing_node_ends_the_run_with_its_name(job):
    job.environ["AORTA_GATHER_TIMEOUT_S"] = "3"
    job.start(0, 3)
    job.start(1, 3)
    assert job.wait() == [5, 5]
    reason = "node 2 of 3 did not report within 3 s"
    assert f"aorta: {reason}" in job.output(0)
    assert read_json(job.run.manifest, Manifest).nodes_missing == [2]
    status = job.status
    assert (status.state, status.nodes_missing) == ("failed", [2])
    assert [node.lost for node in status.nodes] == [[reason], [f"node 0: {reason}"]]
    assert not (job.folder / "pid0").exists()


def test_a_signal_while_waiting_for_the_others(job):
    agent = job.start(0, 2)
    until(job.run.node(0).info.exists)
    agent.terminate()
    assert job.wait() == [143]
    (node,) = job.status.nodes
    assert (node.state, node.lost) == ("cancelled", ["SIGTERM before the run started"])


def test_a_requeued_job_keeps_its_attempts_apart(tmp_path):
    job = Job(tmp_path, "1node")
    assert job.start_in_slurm(0).wait(LIMIT_S) == 0, job.output(0)
    assert job.start_in_slurm(1).wait(LIMIT_S) == 0, job.output(1)
    assert job.start_in_slurm(1).wait(LIMIT_S) == 5
    assert "already holds attempt 1 of job j" in job.output(2)
    assert read_json(RunDir(job.run.attempt(0)).status, RunStatus).attempt == 0
    assert (job.status.attempt, job.status.state) == (1, "completed")
    manifest = read_json(job.run.manifest, Manifest)
    assert (manifest.attempt, manifest.executor, manifest.nodes[0].slurm_node) == (1, "slurm", "n0")


def fake_nsys(folder, outcome):
    """A stand-in for nsys: runs the program, then writes the report where asked, elsewhere, or says why not.

    Its exports are all of one made with planted secrets.
    """
    folder.mkdir()
    export = Export(ranges=[(0, 30, 7, "aorta.step", 59), (40, 50, 7, "aorta.step", 59)])
    plant(export.write(folder / "made.sqlite"))
    place = {"written": "$out", "strayed": f"{folder}/report1"}.get(outcome)
    report = (
        f'name="{place}"; name="${{name//%q\\{{RANK\\}}/$RANK}}"; name="${{name//%h/host}}$RANK.nsys-rep"\n'
        'echo x > "$name"; echo "Generated:"; echo "    $name"'
    )
    script = folder / "nsys"
    script.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2021.3.1"; exit 0; fi\n'
        'if [ "$1" = export ]; then\n'
        '    while [ "$1" != --output ]; do shift; done\n'
        f'    cp {folder}/made.sqlite "$2"; exit 0\n'
        "fi\n"
        'while [ "$1" != -o ]; do shift; done; out="$2"; shift 2\n'
        '"$@"; code=$?\n' + (report if place else 'echo "Import Failed: no space left"') + "\nexit $code\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)


@pytest.mark.parametrize("outcome", ["written", "strayed", "failed"])
def test_each_rank_runs_inside_the_profiler_and_what_is_missing_is_said(job, outcome):
    job.environ["PATH"] = f"{fake_nsys(job.folder / 'bin', outcome)}:{job.environ['PATH']}"
    job.start(0, 1, behaviour="alone", options=["--profiler", "nsys", "--procs-per-node", "2"])
    assert job.wait() == [0], job.output(0)
    choice = read_json(job.run.manifest, Manifest).nodes[0].profiler
    assert (choice.resolved, choice.version) == ("nsys", "NVIDIA Nsight Systems version 2021.3.1")
    assert choice.notes == ["nsys 2021.3 is older than 2022.4, the oldest known to work; it is tried"]
    (node,) = job.status.nodes
    reports = list(job.run.nsys_reports.iterdir())
    if outcome == "failed":
        reason = "the profiler could not write it (is the disk full?): no space left"
        assert node.lost == [f"profiler's report of rank {rank}: {reason}" for rank in range(2)]
        assert reports == []
        return
    moved = f"was in {job.folder / 'bin'} and was moved to {job.run.nsys_reports.resolve()}"
    strayed = [f"the report of rank {rank} {moved}" for rank in range(2)]
    assert node.lost == (strayed if outcome == "strayed" else [])
    assert len(reports) == 2
    assert stat.S_IMODE(job.run.nsys_reports.stat().st_mode) == 0o700
    assert len(list(job.run.nsys.glob("toy_2node_profile_rank*.sqlite"))) == 2
    assert job.run.summary_stats("nsys").read_text().splitlines()[1:] == [
        f"{rank},nvtx,aorta.step,2,40,20.0,20.0,10,30," for rank in range(2)
    ]
    holding = [path for path in job.run.root.rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    assert holding == []


def fake_rocprofv3(folder):
    """A stand-in for rocprofv3 that knows only two options, and writes a kernel trace as 7.0 does."""
    folder.mkdir()
    script = folder / "rocprofv3"
    header = ",".join(f'"{name}"' for name in ("Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"))
    script.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo "version: 1.0.0"; exit 0; fi\n'
        'if [ "$1" = --help ]; then echo "[--kernel-trace] [--stats] [--output-format] -- app"; exit 0; fi\n'
        'while [ "$1" != -d ]; do shift; done; out="$2/${4//%env\\{RANK\\}%/$RANK}"; shift 4; shift\n'
        f'out="${{out//\\%hostname\\%/h}}"; out="${{out//\\%pid\\%/$$}}"; "$@"; code=$?\n'
        f"echo '{header}' > \"${{out}}_kernel_trace.csv\"\n"
        'echo \'"KERNEL_DISPATCH","f<"a", int>",100,130\' >> "${out}_kernel_trace.csv"\n'
        "exit $code\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def test_rocprofv3_gets_the_users_options_and_its_files_are_summed_up(job):
    job.environ["PATH"] = f"{fake_rocprofv3(job.folder / 'bin')}:{job.environ['PATH']}"
    job.environ["ROCPROF_ARGS"] = "--kernel-trace --stats"
    job.start(0, 1, behaviour="alone", options=["--profiler", "rocprofv3", "--procs-per-node", "2"])
    assert job.wait() == [0], job.output(0)
    (node,) = job.status.nodes
    assert node.lost == []
    assert job.run.summary_stats("rocprofv3").read_text().splitlines()[1:] == [
        f'{rank},kernel,"f<""a"", int>",1,30,30.0,30.0,30,30,' for rank in range(2)
    ]
    clock = read_json(job.run.node(0).info, NodeInfo).clock
    assert min(clock.realtime_ns, clock.boottime_ns) > 0


def test_options_that_this_rocprofv3_does_not_know_end_the_run_before_it_starts(job):
    job.environ["PATH"] = f"{fake_rocprofv3(job.folder / 'bin')}:{job.environ['PATH']}"
    job.environ["ROCPROF_ARGS"] = "--kernel-trace --kernel-symbols"
    job.start(0, 1, options=["--profiler", "rocprofv3"])
    assert job.wait() == [2]
    assert "this rocprofv3 has no option --kernel-symbols" in job.output(0)
    assert not (job.folder / "pid0").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--override", "trainig.seed=1"], 2, "unknown key trainig"),
        (["--profiler", "rocprofv3"], 5, "rocprofv3 was asked for and is not installed here"),
        (["--config", "/absent.yaml"], 2, "/absent.yaml does not exist"),
        (["--monitor-interval", "0.001"], 2, "monitor.interval_s"),
    ],
)
def test_what_cannot_work_is_said_and_marked(job, options, code, message):
    job.environ["PATH"] = "/usr/bin:/bin"
    job.start(0, 1, options=options)
    assert job.wait() == [code]
    assert "Traceback" not in job.output(0)
    (node,) = job.status.nodes
    assert node.state == "failed"
    assert message in node.lost[0]
    assert not (job.folder / "pid0").exists()


def monitor_of(agent):
    (monitor,) = [child for child in psutil.Process(agent.pid).children() if "monitor" in child.cmdline()]
    return monitor


def test_a_dead_monitor_does_not_stop_the_training(job):
    agent = job.start(0, 1, steps=60)
    job.running(1)
    monitor_of(agent).kill()
    assert job.wait() == [0]
    (node,) = job.status.nodes
    assert node.state == "completed"
    assert node.lost[0].startswith("monitor samples: the monitor ended early with -9")


def test_a_results_folder_that_goes_away_is_said(job):
    job.start(0, 1, steps=20)
    job.running(1)
    shutil.rmtree(job.folder / "results")
    assert job.wait() == [5]
    assert "disappeared while the job ran" in job.output(0)
