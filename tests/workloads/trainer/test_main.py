"""The command line of the trainer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.records import Planned
from aorta.config.load import load_config
from aorta.workloads.trainer import main as command
from tests.workloads.trainer.tiny import OVERRIDES

ROOT = Path(__file__).parents[3]


def test_overrides_accumulate_in_both_forms() -> None:
    flags = command.parser().parse_args(
        ["--override", "a.b=1", "c.d=2", "--config", "x.yaml", "--override", "e=3"]
    )
    assert flags.override == ["a.b=1", "c.d=2", "e=3"]
    assert flags.config == Path("x.yaml")
    assert command.parser().parse_args([]).override == []


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parser().parse_args(["--overrid", "a=1"])
    assert ended.value.code == 2
    assert "--overrid" in capsys.readouterr().err


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun's error files, which take over this process's fault handler."""

    def record(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    monkeypatch.setattr(command, "record", record)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--override", "training.batchsize=3"], "did you mean training.batch_size?"),
        (["--config", "missing.yaml"], "configuration file missing.yaml does not exist"),
        (
            ["--override", "distributed.overlap_reduce_scatter=true", "distributed.strategy=ddp"],
            "has no reduce-scatter",
        ),
        (["--override", "fsdp.use_orig_params=false"], "fsdp.use_orig_params is false"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], message: str, unrecorded: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("aorta: ")
    assert message in error


def environment() -> dict[str, str]:
    foreign = ("AORTA_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def test_a_plain_process_trains_and_leaves_its_files(tmp_path: Path) -> None:
    arguments = ["--override", *OVERRIDES, "--override", f"training.output_dir={tmp_path}/out"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments, "--enable-rocm-metrics"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.yaml",
        "metrics.csv",
        "planned.json",
        "rank_0_metrics.jsonl",
    ]
    assert read_json(out / "planned.json", Planned).steps == 4
    assert load_config(out / "config.yaml") == load_config(None, [*OVERRIDES, f"training.output_dir={out}"])
    assert len((out / "rank_0_metrics.jsonl").read_text().splitlines()) == 4
    assert "rocm_smi_output stays null" in done.stdout
    assert "done: 4 steps" in done.stdout


def test_sigterm_ends_a_plain_process_with_its_records(tmp_path: Path) -> None:
    records = tmp_path / "rank_0_metrics.jsonl"
    endless = ["training.max_steps=0", "training.epochs=100000", f"training.output_dir={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "aorta.workloads.trainer", "--override", *OVERRIDES, *endless],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (records.exists() and records.stat().st_size):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert records.read_bytes().endswith(b"\n")
