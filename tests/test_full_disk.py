"""Disks without room, for real: output that goes nowhere, and a results folder on a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disk import small_disk
from tests.support.synthetic import RunSpec, write_run

AORTA = [sys.executable, "-m", "aorta"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("explain",), ("runs", "--json"), ("analyze", "run"), ("--help",)])
def test_output_that_cannot_be_written_is_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    run = write_run(tmp_path / "results/profiling", RunSpec(steps=24)).root
    argv = [str(run) if word == "run" else word for word in words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*AORTA, *argv], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "aorta: cannot write the output: No space left on device",
        "  hint: redirect it to a place with free space",
    ]


@pytest.mark.parametrize("words", [("profile", "--nodes", "1", "--results", "."), ("aggregate", ".")])
def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        write_run(disk, RunSpec(steps=3, nodes=1)) if words[0] == "aggregate" else None
        with (disk / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1024))
            except OSError:
                pass
        done = subprocess.run([*AORTA, *words], cwd=disk, capture_output=True, text=True, check=False)
    assert done.returncode not in (0, -9)
    assert "No space left on device" in done.stderr
    assert "bug in aorta" not in done.stderr
    assert "Traceback" not in done.stderr
