"""The scripts: their text, and what a shell does with them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from aorta.artefacts.submissions import SubmissionDir
from aorta.errors import PlanError
from aorta.launch.sbatch import COMMITTED, committed, render, render_aggregate
from tests.support.slurm import PLAN

ROOT = Path(__file__).parents[2]


GOLDEN = """\
#!/bin/bash
#SBATCH --job-name=profile_2node
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --account=lab
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --constraint="a100|h100"
#SBATCH --time=00:30:00
#SBATCH --output=/shared/results/profile_2node_%j.out
#SBATCH --open-mode=append
#SBATCH --signal=TERM@90
#SBATCH --exclusive
#SBATCH --mem=64G

set -euo pipefail
cd '/my project'

# One task per node: the node agent. exec, so that scancel and the signal before the limit reach it by srun.
# Which node a task is on is known only inside srun, so nothing of it is expanded here.
exec srun \\
    --nodes=2 --ntasks=2 --ntasks-per-node=1 \\
    ${SLURM_CPUS_PER_TASK:+--cpus-per-task="${SLURM_CPUS_PER_TASK}"} \\
    --kill-on-bad-exit=0 --wait=0 \\
    /venv/bin/aorta run-node \\
    --scenario 2node \\
    --results /shared/results \\
    --config /shared/results/run_1/2node.yaml \\
    --profiler nsys \\
    --procs-per-node 4 \\
    --monitor-interval 0.5 \\
    --submitted-wall-ns 17 \\
    --script "$0" \\
    -- train.py --name 'two words'
"""


def test_the_whole_text() -> None:
    plan = replace(
        PLAN,
        project="/my project",
        cpus_per_task=16,
        gpus_per_node=4,
        account="lab",
        partition="gpu",
        qos="high",
        constraint="a100|h100",
        exclusive=True,
        sbatch_lines=("#SBATCH --mem=64G",),
        profiler="nsys",
        processes_per_node=4,
        monitor_interval_s=0.5,
        submitted_wall_ns=17,
        command=("train.py", "--name", "two words"),
    )
    assert render(plan) == GOLDEN


def test_what_is_not_asked_for_is_not_there() -> None:
    text = render(PLAN)
    for name in ("gpus", "account", "partition", "qos", "constraint", "exclusive", "cpus-per-task="):
        assert f"#SBATCH --{name}" not in text
    assert " -- " not in text.partition("exec srun")[2]


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_file_is_what_the_template_renders(name: str) -> None:
    assert (ROOT / "slurm" / f"profile_{name}.sbatch").read_text() == render(*committed(name))


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_file_leaves_the_site_open_and_the_node_alone(name: str) -> None:
    text = render(*committed(name))
    assert "--account" not in text.replace("sbatch --account=A", "")
    assert "SLURM_NODEID" not in text
    assert f"--output=results/profiling/profile_{name}_%j.out" in text


def test_only_gpu_files_leave_the_configuration_to_the_site() -> None:
    assert "${AORTA_CONFIG:-config/default.yaml}" in render(*committed("4node"))
    text = render(*committed("cpu_2node"))
    assert "AORTA_CONFIG" not in text
    assert "--override training.device=cpu" in text


HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "a; touch pwned",
    "it's",
    '"quoted"',
    "a\\b",
    "-x",
    "",
    "~",
    "*",
    "ü",
    "${HOME}",
]


def run_script(text: str, tmp_path: Path, environment: dict[str, str] | None = None) -> list[str]:
    """The arguments that srun gets from the script, by a stand-in on PATH."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    fake = tmp_path / "bin" / "srun"
    fake.write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    fake.chmod(0o755)
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    path = {"PATH": f"{fake.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", str(script)], env=path | (environment or {}), capture_output=True, check=True, cwd=tmp_path
    )
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("word", HOSTILE)
def test_a_shell_hands_every_word_on_as_it_is(word: str, tmp_path: Path) -> None:
    project = tmp_path / f"p {word}".replace("/", "")
    project.mkdir(exist_ok=True)
    plan = replace(PLAN, project=str(project), config=word, command=("x.py", word))
    words = run_script(render(plan), tmp_path)
    assert words[words.index("--config") + 1] == word
    assert words[-3:] == ["--", "x.py", word]
    assert words[words.index("--script") + 1] == str(tmp_path / "job.sbatch")
    assert not list(tmp_path.rglob("pwned"))


def test_cpus_per_task_reaches_srun_only_where_the_job_has_it(tmp_path: Path) -> None:
    text = render(replace(PLAN, project=str(tmp_path)))
    assert "--cpus-per-task=6" in run_script(text, tmp_path, {"SLURM_CPUS_PER_TASK": "6"})
    assert not [word for word in run_script(text, tmp_path) if word.startswith("--cpus-per-task")]


def test_a_committed_script_runs_where_it_was_submitted(tmp_path: Path) -> None:
    text = render(*committed("1node"))
    words = run_script(text, tmp_path, {"SLURM_SUBMIT_DIR": str(tmp_path), "AORTA_CONFIG": "a b.yaml"})
    assert words[words.index("--config") + 1] == "a b.yaml"
    words = run_script(text, tmp_path, {"SLURM_SUBMIT_DIR": str(tmp_path)})
    assert words[words.index("--config") + 1] == "config/default.yaml"


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\x00b", 'a"b', "a'b", "a\\b", "a`b", "a$b"])
@pytest.mark.parametrize("name", ["account", "partition", "qos", "constraint", "output"])
def test_a_directive_refuses_what_it_cannot_carry(name: str, value: str) -> None:
    with pytest.raises(PlanError, match=name):
        render(replace(PLAN, **{name: value}))  # type: ignore[arg-type]


def test_the_chained_analysis() -> None:
    plan = replace(PLAN, account="lab", gpus_per_node=4)
    text = render_aggregate([plan], SubmissionDir(Path("/shared/results/run_1")), Path("/my docs"))
    assert "#SBATCH --account=lab" in text
    assert "gpus" not in text
    assert text.endswith(
        "exec /venv/bin/aorta aggregate /shared/results --docs '/my docs' "
        "--submission /shared/results/run_1\n"
    )
