"""No secret of a program stands in what a job on a cluster writes, however the program ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import planted

pytestmark = pytest.mark.slurm

AORTA = str(Path(sys.executable).with_name("aorta"))


@pytest.mark.parametrize("fail", [False, True])
def test_no_secret_after_a_job(cluster, tmp_path: Path, fail: bool) -> None:
    planted.write_program(tmp_path / "own.py", fail=fail)
    results, docs = tmp_path / "results", tmp_path / "docs"
    said = ""
    submitted = ["--results", str(results), "--nodes", "1", "--profiler", "none", "--docs", str(docs)]
    for words in (
        ["submit", *submitted, "--", "own.py", *planted.ARGUMENTS],
        ["wait", "--results", str(results), "--interval", "0.5"],
        ["aggregate", str(results), "--docs", str(docs)],
        ["status", "--results", str(results)],
    ):
        done = subprocess.run(
            [AORTA, *words], cwd=tmp_path, env={**os.environ, **planted.VARIABLES}, capture_output=True,
            text=True, check=False, timeout=240, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said += done.stdout + done.stderr
    assert "Traceback" not in said
    logs = [path.read_text() for path in results.rglob("stderr.log")]
    assert any("variables" in text and "***" in text for text in logs), said
    scripts = list(results.rglob("*.sbatch"))
    assert len(scripts) >= 2  # of the submission, and of the run
    assert {oct(path.stat().st_mode & 0o777) for path in scripts} == {"0o600"}
    assert planted.found(results, docs) == []
    assert [one for one in planted.SECRETS if one in said] == []
