"""How programs are called."""

import sys

import pytest

from aorta.artefacts.slurm_environment import clean_environment
from aorta.launch.tools import ToolAnswer, call


def test_options_in_the_environment_are_left_out_and_the_rest_stays() -> None:
    environment = {
        "PATH": "/bin",
        "AORTA_CONFIG": "x.yaml",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_PARTITION": "other",
        "SLURM_JOB_ID": "7",
        "SBATCH_PARTITION": "other",
        "SQUEUE_STATES": "RUNNING",
        "SACCT_FORMAT": "jobid",
        "SRUN_CPUS_PER_TASK": "2",
        "SLURMISH": "kept",
    }
    assert set(clean_environment(environment)) == {"PATH", "AORTA_CONFIG", "SLURM_CONF", "SLURMISH"}


def test_a_program_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_QOS", "stray")
    code = "import os, sys; print(os.environ.get('SBATCH_QOS')); print('why', file=sys.stderr); sys.exit(3)"
    assert call([sys.executable, "-c", code]) == ToolAnswer(3, "None\n", "why\n")


def test_a_program_that_is_not_there() -> None:
    answer = call(["no-such-program-here"])
    assert answer.code is None
    assert answer.complaint == "no-such-program-here is not installed here"


def test_a_program_that_does_not_answer() -> None:
    answer = call(["sleep", "60"], timeout_s=0.05)
    assert answer.code is None
    assert "did not answer" in answer.complaint


def test_a_complaint_is_one_line_and_never_empty() -> None:
    assert ToolAnswer(1, "out", "a\n\n  b\n").complaint == "a; b"
    assert ToolAnswer(1, "only out\n").complaint == "only out"
    assert ToolAnswer(9).complaint == "exit status 9 and no message"
