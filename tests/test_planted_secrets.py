"""No secret of a program stands in what `aorta profile` writes or prints, however the program ends."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import planted


def profile(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`aorta profile` in a process that has the secret variables."""
    return subprocess.run(
        [sys.executable, "-m", "aorta", "profile", "--nodes", "1", "--profiler", "none", *words],
        cwd=folder, env={**os.environ, **planted.VARIABLES}, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip


@pytest.mark.parametrize("fail", [False, True])
def test_no_secret_after_a_run(tmp_path: Path, fail: bool) -> None:
    planted.write_program(tmp_path / "own.py", fail=fail)
    done = profile(tmp_path, "--results", "results", "--docs", "docs", "--", "own.py", *planted.ARGUMENTS)
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) is not fail
    logs = [path.read_text() for path in (tmp_path / "results").rglob("stderr.log")]
    assert any(
        "variables" in text and "***" in text for text in logs
    )  # the program did say all that it knows
    assert len(list((tmp_path / "docs").rglob("*"))) > 2
    assert planted.found(tmp_path / "results", tmp_path / "docs") == []
    assert [one for one in planted.SECRETS if one in done.stdout + done.stderr] == []


@pytest.mark.parametrize("key", planted.CONFIGURED)
def test_a_secret_in_a_configuration_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    done = profile(tmp_path, "--results", "results", "--override", f"{key}={planted.CONFIGURED[key]}")
    assert done.returncode == 2
    assert planted.found(tmp_path) == []
    assert [one for one in planted.SECRETS if one in done.stdout + done.stderr] == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x" + planted.SECRETS[3].encode()))
    assert planted.found(tmp_path) == [f"{tmp_path / 'a.gz'}: {planted.SECRETS[3]}"]
    assert len(set(planted.SECRETS)) == 40


def test_bytes_that_are_no_utf8_are_recorded_with_escapes(tmp_path: Path) -> None:
    """In an argument, in a variable that is recorded, and in the working folder."""
    folder = os.path.join(os.fsencode(tmp_path), b"w\xe9")  # noqa: PTH118 (bytes)
    os.mkdir(folder)  # noqa: PTH102 (bytes)
    planted.write_program(Path(os.fsdecode(folder)) / "own.py", fail=False)
    done = subprocess.run(
        [sys.executable, "-m", "aorta", "profile", "--nodes", "1", "--profiler", "none",
         "--results", "results", "--docs", "docs", "--", "own.py", b"caf\xe9"],
        cwd=folder, env={**os.environb, b"NCCL_X": b"caf\xe9"}, capture_output=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (manifest,) = Path(os.fsdecode(folder)).rglob("manifest.json")
    assert manifest.read_text().count("caf\\\\xe9") == 2
