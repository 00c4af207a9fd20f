"""What torchrun starts, and the environment of the ranks."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

from aorta.artefacts.layout import Scenario
from aorta.artefacts.own_program import OwnProgram
from aorta.artefacts.records import Manifest, ResolvedPlan, Session
from aorta.config.schema import CaptureConfig
from aorta.errors import PlanError
from aorta.runner import command
from aorta.runner.options import NodeOptions
from tests.runner.test_network import node

CONFIG = Path("/r/config.yaml")
CAPTURE = CaptureConfig(warmup_steps=3)
SESSION = Session(attempt=0, token="tok", stage="start", master_address="10.0.0.1", master_port=29)


def options(tmp_path, **changes):
    values = {"executor": "local", "job_id": "j7", "node_index": 1, "nodes": 2, "attempt": 3}
    return NodeOptions(scenario=Scenario("cpu_2node"), results=tmp_path, config=None, **{**values, **changes})


def manifest(nodes):
    plan = ResolvedPlan(
        scenario="cpu_2node",
        nodes=2,
        processes_per_node=None,
        gpus_per_node=None,
        command=[],
        profiler="none",
        monitor_interval_s=1.0,
    )
    return Manifest(
        run_id="cpu_2node-j7",
        job_id="j7",
        executor="local",
        attempt=3,
        scenario="cpu_2node",
        started_wall_ns=1,
        submitted_wall_ns=None,
        code_version="0",
        world_size=sum(item.processes for item in nodes),
        plan=plan,
        nodes=nodes,
        nodes_missing=[],
        shared_machine=True,
    )


def test_the_trainer_is_the_default_program():
    assert command.rank_command([], CONFIG) == [
        *(sys.executable, "-u", "-m", "aorta.workloads.trainer", "--config", "/r/config.yaml")
    ]


def test_scripts_and_modules_run_under_the_agents_python(tmp_path):
    script = tmp_path / "t.py"
    script.touch()
    assert command.rank_command([str(script), "--x"], CONFIG) == [sys.executable, "-u", str(script), "--x"]
    assert command.rank_command(["-m", "pkg", "1"], CONFIG) == [sys.executable, "-u", "-m", "pkg", "1"]


def test_a_program_is_used_as_it_is():
    assert command.rank_command(["prog", "a b"], CONFIG, which=lambda name: "/bin/x") == ["prog", "a b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.py"], "absent.py does not exist"),
        (["absent-program"], "absent-program is not in PATH"),
        (["torchrun", "--nproc_per_node", "8", "t.py"], "starts torchrun"),
        (["python", "-m", "torch.distributed.run", "t.py"], "starts python -m torch.distributed.run"),
        (["/opt/bin/torchrun", "t.py"], "starts torchrun"),
    ],
)
def test_what_cannot_work_is_refused(words, message):
    with pytest.raises(PlanError, match=message):
        command.rank_command(words, CONFIG)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "ranking"),
        (["dir/my train.py"], "my_train"),
        (["python", "x.py", "y.py"], "x"),
        (["-m", "pkg.run"], "pkg.run"),
        (["/opt/prog"], "prog"),
    ],
)
def test_workload_names(words, name):
    assert command.workload_name(words, "ranking") == name


def test_torchrun_with_static_ranks():
    argv = command.torchrun_argv(
        ["nsys", "profile", "python"], SESSION, node(1, processes=4), nodes=2, logs=Path("/l"), timeout_s=60.5
    )
    assert " ".join(argv[1:]) == (
        "-m torch.distributed.run --nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr 10.0.0.1 "
        "--master-port 29 --rdzv-id tok --rdzv-conf timeout=61 --max-restarts 0 --log-dir /l --tee 3 "
        "--no-python -- nsys profile python"
    )


def test_torchrun_leaves_the_options_of_the_program_alone():
    """Each of these would be ambiguous or taken among torchrun's own."""
    program = ["python", "train.py", "--log", "5", "--n", "$(x)", "-t", "1", "--", "--nnodes", "9"]
    argv = command.torchrun_argv(
        program, SESSION, node(0, processes=1), nodes=2, logs=Path("/l"), timeout_s=60
    )
    read = parse_args(argv[3:])
    assert [read.training_script, *read.training_script_args] == program
    assert (read.nnodes, read.tee) == ("2", "3")


def test_the_documented_variables(tmp_path):
    nodes = [node(0), node(1)]
    env = command.rank_environment(
        {"PATH": "/bin"},
        options(tmp_path),
        nodes[1],
        manifest(nodes),
        interface="eth0",
        capture=CAPTURE,
    )
    assert {name: value for name, value in env.items() if name.startswith("AORTA_")} == {
        "AORTA_RUN_DIR": str(tmp_path / "cpu_2node/run_j7"),
        "AORTA_JOB_ID": "j7",
        "AORTA_RUN_ID": "cpu_2node-j7",
        "AORTA_ATTEMPT": "3",
        "AORTA_SCENARIO": "cpu_2node",
        "AORTA_NODE_INDEX": "1",
        "AORTA_PROFILER": "none",
        "AORTA_CAPTURE": env["AORTA_CAPTURE"],
    }
    assert json.loads(env["AORTA_CAPTURE"])["warmup_steps"] == 3
    assert (env["PATH"], env["GLOO_SOCKET_IFNAME"], env["PYTHONUNBUFFERED"]) == ("/bin", "eth0", "1")
    # With one queue a GPU runs communication and compute one after the other.
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in env


def test_what_the_user_has_set_stays(tmp_path):
    mine = {"OMP_NUM_THREADS": "7", "CUDA_DEVICE_MAX_CONNECTIONS": "32", "GLOO_SOCKET_IFNAME": "ib0"}
    env = command.rank_environment(
        mine,
        options(tmp_path),
        node(1),
        manifest([node(0), node(1)]),
        interface="eth0",
        capture=CAPTURE,
    )
    assert {name: env[name] for name in mine} == mine


@pytest.mark.parametrize(
    ("environ", "cpus", "ranks", "threads"),
    [
        ({"AORTA_SHARED_NODES": "4"}, 16, 2, 16 // (4 * 2)),
        ({"AORTA_SHARED_NODES": "4"}, 2, 2, 1),
        ({}, 3, 2, max(1, 3 // 2)),
        ({"AORTA_SHARED_NODES": "1"}, 16, 2, 16 // 2),
    ],
)
def test_threads_a_rank(tmp_path, environ, cpus, ranks, threads):
    own = node(1, cpus_usable=cpus, processes=ranks, machine=None)
    env = command.rank_environment(
        environ, options(tmp_path), own, manifest([own]), interface=None, capture=CAPTURE
    )
    assert env["OMP_NUM_THREADS"] == str(threads)
    assert "GLOO_SOCKET_IFNAME" not in env


def test_nodes_of_one_machine_share_its_cpus_unless_each_is_held_to_its_own():
    everything = os.cpu_count() or 1
    nodes = [node(0, cpus_usable=everything), node(1, cpus_usable=everything), node(2, machine="m2")]
    assert command.ranks_on_machine(nodes[0], manifest(nodes), {}) == 2
    held = node(0, cpus_usable=everything - 1)
    assert command.ranks_on_machine(held, manifest([held, nodes[1]]), {}) == 1


def test_a_program_that_starts_its_ranks_is_told_where_it_is(monkeypatch):
    own = node(1, processes=4)
    for name, value in command.launcher_environment(SESSION, own, nodes=2).items():
        monkeypatch.setenv(name, value)
    read = parse_args(["train.py"])
    assert (read.nnodes, read.node_rank, read.nproc_per_node) == ("2", 1, "4")
    assert (read.master_addr, read.master_port) == (SESSION.master_address, SESSION.master_port)
    assert parse_args(["--nproc-per-node", "8", "train.py"]).nproc_per_node == "8"  # what is given counts


def test_an_own_python_runs_scripts_and_modules_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    own = OwnProgram(python="/env/bin/python", launcher="own")
    assert command.rank_command(["train.py"], CONFIG, own=own) == ["/env/bin/python", "-u", "train.py"]
    assert command.rank_command(["-m", "pkg", "x"], CONFIG, own=own)[0] == "/env/bin/python"
    launcher = ["torchrun", "train.py"]
    assert command.rank_command(launcher, CONFIG, which=lambda name: name, own=own) == launcher
    with pytest.raises(PlanError, match="starts torchrun"):
        command.rank_command(launcher, CONFIG, which=lambda name: name)


def test_hooks_come_first_and_what_was_in_the_path_stays(tmp_path):
    program = dataclasses.replace(options(tmp_path), command=("train.py",), own=OwnProgram(steps=7))
    made = {"options": program, "own": node(0), "manifest": manifest([node(0)])}
    env = command.rank_environment({"PYTHONPATH": "/mine"}, **made, interface=None, capture=CAPTURE)
    assert env["PYTHONPATH"] == f"{command.HOOKS}{os.pathsep}/mine"
    assert (env["AORTA_INSTRUMENT"], env["AORTA_STEPS"]) == ("auto", "7")
    bare = command.rank_environment({}, **made, interface=None, capture=CAPTURE)
    assert bare["PYTHONPATH"] == str(command.HOOKS)  # an empty entry would be the current folder
    made["options"] = dataclasses.replace(program, own=OwnProgram(instrument="none"))
    assert "PYTHONPATH" not in command.rank_environment({}, **made, interface=None, capture=CAPTURE)
