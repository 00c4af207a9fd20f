from __future__ import annotations

from pathlib import Path

import pytest

from aorta.artefacts.launchers import called_by_script, keeps_hooks_out, launcher
from aorta.errors import PlanError
from aorta.launch import checks
from aorta.runner.command import rank_command

LAUNCHERS = (
    "torchrun --nproc-per-node 2 train.py",
    "/opt/bin/torchrun train.py",
    "python -m torch.distributed.run train.py",
    "python3.11 -u -W ignore -m torch.distributed.launch train.py",
    "-m torch.distributed.run train.py",
    "python /opt/bin/torchrun train.py",
    "python /lib/torch/distributed/run.py train.py",
    "accelerate launch train.py",
    "python -m accelerate.commands.launch train.py",
    "deepspeed train.py",
    "python -m deepspeed train.py",
    "mpirun -n 2 python train.py",
    "mpiexec -n 2 python train.py",
    "srun python train.py",
    "env NCCL_DEBUG=INFO torchrun train.py",
    "uv run torchrun train.py",
)
PROGRAMS = (
    "train.py --launcher torchrun",
    "train.py torchrun srun",
    "python train.py -m torch.distributed.run",
    "python -m mymodule torchrun",
    "-m package srun",
    "accelerate config",
    "torchrunner x",
)


def agent(words: list[str]) -> None:
    rank_command(words, Path("config.yaml"), which=lambda name: name)


@pytest.mark.parametrize("text", LAUNCHERS)
def test_submission_and_agent_refuse_the_same_launchers(text: str) -> None:
    words = text.split()
    assert launcher(words) is not None
    with pytest.raises(PlanError, match="started by"):
        checks.processes(1, None, None, words)
    with pytest.raises(PlanError, match="the command starts"):
        agent(words)


@pytest.mark.parametrize("text", PROGRAMS)
def test_submission_and_agent_take_the_same_programs(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    words = text.split()
    assert launcher(words) is None
    checks.processes(1, None, None, words)
    checks.shell_script(words, tmp_path)
    agent(words)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torchrun train.py", "torchrun"),
        ("exec python -m torch.distributed.launch train.py", "torch.distributed.launch"),
        ("if true; then /opt/bin/mpiexec -n 2 x; fi", "mpiexec"),
        ("accelerate  launch train.py", "accelerate  launch"),
        ("# torchrun train.py", None),
        ("python train.py --out torchrun.log", None),
        ("python train.py --my-srun 1", None),
    ],
)
def test_scripts_are_read_alike(
    text: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"set -e\n{text}\n")
    for command in (["bash", "run.sh"], ["bash", "-eu", "run.sh"], ["./run.sh"], ["sh", "-c", text]):
        found = called_by_script(command, tmp_path)
        assert (found[1] if found is not None else None) == name
        if name is None:
            checks.shell_script(command, tmp_path)
            agent(command)
            continue
        with pytest.raises(PlanError, match=name):
            checks.shell_script(command, tmp_path)
        with pytest.raises(PlanError, match=name):
            agent(command)


def test_a_script_that_is_not_there_calls_nothing(tmp_path: Path) -> None:
    assert called_by_script(["bash", "missing.sh"], tmp_path) is None
    assert called_by_script([], tmp_path) is None
    assert launcher([]) is None


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["python", "-I", "t.py"], "-I"),
        (["python3.12", "-S", "-m", "t"], "-S"),
        (["/opt/env/bin/python", "-u", "-W", "ignore", "-Eu", "t.py"], "-E"),
        (["env", "A=1", "python", "-Su", "t.py"], "-S"),
        (["uv", "run", "python", "-I", "t.py"], "-I"),
        (["python", "t.py", "-E", "-S"], None),  # the program's own options
        (["python", "-m", "t", "-I"], None),
        (["python", "-W", "-I", "t.py"], None),  # the value of -W
        (["python", "-Xdev", "-uB", "t.py"], None),
        (["python", "--version"], None),
        (["t.py", "-I"], None),
        (["-m", "t", "-S"], None),
        (["./I", "-I"], None),
        ([], None),
    ],
)
def test_an_option_of_python_keeps_the_hooks_out(command: list[str], option: str | None) -> None:
    assert keeps_hooks_out(command) == option
