"""A program of the user's own before it is queued."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aorta.artefacts.own_program import OwnProgram
from aorta.errors import ConfigError, PlanError
from aorta.launch import checks
from aorta.launch.own_program import Interpreter, ask, choose_python, refuse_idle_overrides, resolved


def environment(folder: Path) -> str:
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return str(folder)


def chosen(environ: dict[str, str], with_torch: set[str], given: str | None = None) -> tuple[str, str]:
    def asked(path: str, why: str) -> Interpreter:
        return Interpreter(path, why, (3, 11, 0), "2.6.0" if path in with_torch else None)

    found = choose_python(given, environ, asked, {"python3": "/usr/bin/python3", "/x": "/x"}.get)
    return found.path, found.why


def test_the_active_environment_comes_first_if_it_has_torch(tmp_path: Path) -> None:
    venv, conda = environment(tmp_path / "venv"), environment(tmp_path / "conda")
    shell = {"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda}
    both = {f"{venv}/bin/python", f"{conda}/bin/python", "/usr/bin/python3"}
    assert chosen(shell, both) == (f"{venv}/bin/python", "the active virtual environment")
    assert chosen(shell, both - {f"{venv}/bin/python"}) == (
        f"{conda}/bin/python",
        "the active conda environment",
    )
    assert chosen({}, both) == ("/usr/bin/python3", "python3 in PATH")
    assert chosen({}, set())[0] == sys.executable
    assert chosen(shell, both, given="/x") == ("/x", "as asked for")


def test_an_interpreter_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlanError, match="--python /nowhere: no such program"):
        chosen({}, set(), given="/nowhere")


def test_an_interpreter_says_what_it_is() -> None:
    found = ask(sys.executable, "")
    assert (found.version, found.objections()) == (sys.version_info[:3], [])
    assert found.torch is not None
    assert ask("/bin/false", "").objections() == ["/bin/false does not answer"]


@pytest.mark.parametrize(
    ("version", "torch", "said"),
    [
        ((3, 10, 0), "2.6.0+cu124", []),
        ((3, 14, 1), "2.10.0", []),
        ((3, 9, 1), "2.6.0", ["Python 3.9.1 is not one of 3.10 to 3.14, which the hooks support"]),
        ((3, 12, 0), "2.5.1", ["torch 2.5.1 is older than 2.6"]),
        ((3, 12, 0), None, ["p has no torch on this machine"]),
    ],
)
def test_versions_that_the_hooks_are_not_made_for_are_said(
    version: tuple[int, ...], torch: str | None, said: list[str]
) -> None:
    assert Interpreter("p", "", version, torch).objections() == said


def test_what_will_be_seen_is_said_beforehand() -> None:
    python = Interpreter("/p", "why", (3, 11, 0), "2.6.0")
    said = resolved(OwnProgram(), ["train.py"], python)
    assert said[0] == "python: /p (why)"
    assert said[1].startswith("hooks: steps (optimizers of torch), DataLoader")
    assert (
        "with -I Python ignores aorta's sitecustomize"
        in resolved(OwnProgram(), ["python", "-I", "t.py"], python)[0]
    )
    assert resolved(OwnProgram(instrument="none"), ["x"], python)[0].startswith("hooks: none")
    with pytest.raises(PlanError, match="--steps needs the hooks"):
        resolved(OwnProgram(instrument="none", steps=5), ["x"], python)


@pytest.mark.parametrize(
    "key", ["training.max_steps=5", "dataset.delay_ms=1", "model.dropout=0", "distributed.env={}"]
)
def test_overrides_that_a_program_does_not_read_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"--override {key.partition('=')[0]}"):
        refuse_idle_overrides([key], ["train.py"])
    refuse_idle_overrides([key], [])  # the built-in trainer reads it


def test_overrides_that_count_for_every_program_are_taken() -> None:
    taken = [
        "capture.steps=5",
        "monitor.interval_s=2",
        "thresholds.data_wait_pct=10",
        "distributed.timeout_s=9",
    ]
    refuse_idle_overrides(taken, ["train.py"])


@pytest.mark.parametrize(
    ("command", "works"),
    [
        ("torchrun --nproc_per_node 2 train.py --lr 1", "--procs-per-node 2 -- train.py --lr 1"),
        ("accelerate launch --num_processes=4 train.py", "--procs-per-node 4 -- train.py"),
        ("deepspeed --num_gpus 8 train.py --ds", "--procs-per-node 8 -- train.py --ds"),
        ("srun python train.py", "--procs-per-node N -- train.py"),
        ("srun -n 4 python train.py", "--procs-per-node N -- train.py"),
        ("python -m torch.distributed.run --nproc-per-node 3 t.py", "--procs-per-node 3 -- t.py"),
    ],
)
def test_a_launcher_is_refused_with_the_command_that_works(command: str, works: str) -> None:
    with pytest.raises(PlanError) as refused:
        checks.processes(1, None, None, command.split())
    assert works in refused.value.hint
    # srun in a job step of aorta would wait for a place.
    assert ("--launcher own" in refused.value.hint) == (not command.startswith("srun"))
    checks.processes(1, None, None, command.split(), launcher_is_own=True)


def test_no_profiler_goes_around_ranks_that_the_program_starts() -> None:
    assert checks.own_launcher("auto", ["x"]) == "none"
    with pytest.raises(PlanError, match="runs around each rank"):
        checks.own_launcher("nsys", ["x"])
    with pytest.raises(PlanError, match="program of your own"):
        checks.own_launcher(None, [])


def test_the_agent_hears_what_differs_from_the_defaults() -> None:
    assert OwnProgram().arguments() == []
    own = OwnProgram(instrument="none", python="/p", launcher="own", steps=3)
    assert [word for group in own.arguments() for word in group] == (
        "--instrument none --python /p --launcher own --steps 3".split()
    )


@pytest.mark.parametrize(
    "command", [["no.py"], ["bash", "no.sh"], ["python3.11", "no.py"], ["sh", "no.sh", "torchrun"]]
)
def test_a_script_that_is_not_there_is_refused_before_the_queue(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(PlanError, match=r"the program no\.(py|sh) does not exist in"):
        checks.program(command, tmp_path)
    for name in ("no.py", "no.sh"):
        (tmp_path / name).write_text("")
    checks.program(command, tmp_path)


@pytest.mark.parametrize(
    "command", [["bash", "-c", "echo hello"], ["python", "-m", "package"], ["my-binary", "x.py"]]
)
def test_what_names_no_script_needs_no_file(tmp_path: Path, command: list[str]) -> None:
    checks.program(command, tmp_path)
