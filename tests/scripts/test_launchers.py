"""The launch scripts, with a stand-in for Python that says what it was started with."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROOT = SCRIPTS.parent

PYTHON = """#!/bin/bash
# Stands in for a Python whose torch sees $GPUS GPUs and is built for ROCm or not.
case "$*" in
    *device_count*) echo "$GPUS" ;;
    *version.hip*) exit "$NO_HIP" ;;
    *rocprof_capture*) printf 'rocprofv3\\0-d\\0%s\\0--\\0' "$3" ;;
    *) printf '%s\\n' "$@" ;;
esac
"""


class Launched:
    def __init__(self, folder: Path, script: str, *arguments: str, gpus: int = 4, **variables: str) -> None:
        program = folder / "python"
        program.write_text(PYTHON)
        program.chmod(0o755)
        environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(program), "GPUS": str(gpus), "NO_HIP": "0"}
        done = subprocess.run(
            ["bash", str(SCRIPTS / script), *arguments],
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.code, self.words, self.said = done.returncode, done.stdout.splitlines(), done.stderr
        self.processes = self.words[self.words.index("--nproc_per_node") + 1] if self.words else None


@pytest.mark.parametrize("script", ["launch_cuda.sh", "launch_rocm.sh"])
def test_one_process_a_visible_gpu_and_every_argument_arrives(tmp_path: Path, script: str) -> None:
    found = Launched(tmp_path, script, "my.yaml", "--override", "a.b=1 2", "--monitor-gpu")
    assert found.code == 0
    assert found.processes == "4"
    start = found.words.index(str(ROOT / "train.py"))
    assert found.words[start + 1 :] == ["--config", "my.yaml", "--override", "a.b=1 2", "--monitor-gpu"]


def test_without_a_configuration_the_default_one(tmp_path: Path) -> None:
    found = Launched(tmp_path, "launch_cuda.sh", "--override", "training.max_steps=3")
    assert found.words[-4:] == [
        "--config",
        f"{ROOT}/config/default.yaml",
        "--override",
        "training.max_steps=3",
    ]


def test_without_a_gpu_one_process_and_it_is_said(tmp_path: Path) -> None:
    found = Launched(tmp_path, "launch_cuda.sh", "--cpu", gpus=0)
    assert found.processes == "1"
    assert "no GPU is visible: 1 process(es) on the CPU" in found.said
    assert "--cpu" not in found.words
    assert Launched(tmp_path, "launch_cuda.sh", "--cpu", gpus=0, NPROC="2").processes == "2"


@pytest.mark.parametrize("script", ["launch_cuda.sh", "launch_rocm.sh"])
@pytest.mark.parametrize("arguments", [[], ["config/default.yaml"], ["mine.yaml", "--override", "a.b=1"]])
def test_what_may_be_of_gpu_size_is_not_trained_on_a_cpu_unasked(
    tmp_path: Path, script: str, arguments: list[str]
) -> None:
    found = Launched(tmp_path, script, *arguments, gpus=0)
    assert (found.code, found.words) == (2, [])
    assert "add --cpu" in found.said
    agreed = Launched(tmp_path, script, *arguments, "--cpu", gpus=0)
    assert agreed.code == 0
    assert agreed.words[-len(arguments) :] == arguments if arguments[1:] else agreed.words
    # On a GPU nobody is asked.
    assert Launched(tmp_path, script, *arguments).processes == "4"


def test_a_configuration_is_named_as_it_can_be_typed_here(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(PYTHON)
    program.chmod(0o755)
    said = {
        folder: subprocess.run(
            ["bash", str(SCRIPTS / "launch_cuda.sh")],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHON": str(program), "GPUS": "0"},
            capture_output=True,
            text=True,
            check=False,
        ).stderr
        for folder in (SCRIPTS.parent, tmp_path)
    }
    assert "or give config/small.yaml\n" in said[SCRIPTS.parent]
    assert f"or give {SCRIPTS.parent}/config/small.yaml\n" in said[tmp_path]


@pytest.mark.parametrize("config", ["config/small.yaml", "config/dcrnn.yaml"])
def test_what_is_made_for_a_cpu_is_not_asked_about(tmp_path: Path, config: str) -> None:
    assert Launched(tmp_path, "launch_cuda.sh", config, gpus=0).processes == "1"


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2), ("", 2)])
def test_a_person_is_asked(tmp_path: Path, answer: str, code: int) -> None:
    program = tmp_path / "python"
    program.write_text(PYTHON)
    program.chmod(0o755)
    main, other = pty.openpty()
    os.write(main, f"{answer}\n".encode())
    done = subprocess.run(
        ["bash", str(SCRIPTS / "launch_cuda.sh")],
        stdin=other,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(program), "GPUS": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(main)
    os.close(other)
    assert done.returncode == code
    assert "train on the CPU?" in done.stderr


def test_fewer_processes_than_gpus_and_never_more(tmp_path: Path) -> None:
    assert Launched(tmp_path, "launch_cuda.sh", NPROC="2").processes == "2"
    found = Launched(tmp_path, "launch_cuda.sh", NPROC="5")
    assert (found.code, found.words) == (2, [])
    assert "NPROC is 5, but 4 GPU(s) are visible" in found.said
    assert Launched(tmp_path, "launch_cuda.sh", NPROC="many").code == 2


def test_a_torch_without_rocm_is_said(tmp_path: Path) -> None:
    assert "not built for ROCm" in Launched(tmp_path, "launch_rocm.sh", NO_HIP="1").said
    assert "not built for ROCm" not in Launched(tmp_path, "launch_rocm.sh").said


def test_the_profiler_stands_before_every_process(tmp_path: Path) -> None:
    found = Launched(
        tmp_path, "rocprof_capture.sh", "my.yaml", "--override", "a.b=1", ROCPROF_OUTPUT_DIR="there"
    )
    start = found.words.index("--no-python")
    assert found.words[start + 1 : start + 6] == ["rocprofv3", "-d", "there", "--", str(tmp_path / "python")]
    assert found.words[-4:] == ["--config", "my.yaml", "--override", "a.b=1"]


def test_a_profiler_that_cannot_run_starts_nothing(tmp_path: Path) -> None:
    program = tmp_path / "python"
    found = Launched(tmp_path, "rocprof_capture.sh")
    assert found.words
    program.write_text(PYTHON.replace("printf 'rocprofv3\\0-d\\0%s\\0--\\0' \"$3\"", "exit 5"))
    done = subprocess.run(
        ["bash", str(SCRIPTS / "rocprof_capture.sh")],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(program), "GPUS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(not (SCRIPTS.parent / ".git").exists(), reason="the sources are no git checkout")
@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        *(
            (f"{folder}/rank_00_metrics.jsonl", True)
            for folder in ("artifacts", "artifacts_cuda", "artifacts_rocm")
        ),
        ("docs/BOTTLENECK_ANALYSIS.md", True),
        ("docs/workflow.md", False),
    ],
)
def test_git_ignores_what_runs_write(path: str, ignored: bool) -> None:
    command = ["git", "-c", "safe.directory=*", "check-ignore", "--no-index", "-q", path]
    done = subprocess.run(command, cwd=SCRIPTS.parent, check=False, capture_output=True)
    assert done.returncode == (0 if ignored else 1), done.stderr
