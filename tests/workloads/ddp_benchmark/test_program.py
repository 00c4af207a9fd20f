"""`benchmark_ddp.py` as users call it, on two CPU ranks."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.artefacts.ddp_benchmark import DdpBenchmark
from aorta.artefacts.io import read_json
from aorta.artefacts.study_layout import DdpBenchmarkDir
from aorta.readers import kineto
from aorta.workloads.ddp_benchmark.options import IMPLEMENTATIONS
from tests.workloads.ddp_benchmark.test_ranks import ROOT, environment
from tests.workloads.trainer.test_ranks import run_to_end

PROGRAM = str(ROOT / "benchmark_ddp.py")
SMALL = ["--preset", "small", "--device", "cpu", "--num-epochs", "3"]


def test_alone_it_compares_every_implementation(tmp_path: Path) -> None:
    said = run_to_end([sys.executable, PROGRAM, *SMALL, "--steps-per-epoch", "3"], tmp_path)
    folder = DdpBenchmarkDir(tmp_path / "results" / "ddp_benchmark")
    found = read_json(folder.results, DdpBenchmark)
    assert (found.world_size, found.backend, found.device, found.timing) == (2, "gloo", "cpu", "host")
    assert [one.name for one in found.implementations] == list(IMPLEMENTATIONS)
    for one in found.implementations:
        assert one.weights_equal_on_all_ranks
        assert one.steps == 3 * 3 - 1 * 3  # all epochs but the warm-up
        assert one.final_loss == pytest.approx(found.implementations[-1].final_loss, rel=1e-3)
        assert one.bytes_per_step >= found.gradient_bytes
        assert one.throughput_over_torch_ddp is not None
        assert one.bus_over_peak_ratio is not None
    assert found.implementations[0].overlap_ratio == 0.0
    assert found.missing == []
    assert found.peak[0].bytes == 1 << 20
    assert folder.plot_png.stat().st_size > 0
    assert folder.plot_svg.stat().st_size > 0
    for name in IMPLEMENTATIONS:
        assert re.search(rf"rank 0: {name} epoch 1/3 warmup lr 0\.\d+ loss \d+\.\d+", said)
        assert re.search(rf"rank 0: {name} epoch 3/3 training lr 0\.001000 loss \d+\.\d+", said)


def test_a_run_that_is_stopped_leaves_and_shows_what_it_has_measured(tmp_path: Path) -> None:
    flags = ["--implementations", "ddp", "torch_ddp", "--steps-per-epoch", "60"]
    process = subprocess.Popen(
        [sys.executable, PROGRAM, *SMALL, *flags],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        # The reference comes first, so that whatever else was measured can be held against it.
        line = next(line for line in process.stdout if "measured; 1 to go" in line)
        assert "torch_ddp" in line
        process.send_signal(signal.SIGTERM)
        said, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    assert "stopped by SIGTERM" in error
    assert "not measured, because the run ended before that: ddp\n" in said
    found = read_json(DdpBenchmarkDir(tmp_path / "results" / "ddp_benchmark").results, DdpBenchmark)
    assert [one.name for one in found.implementations] == ["torch_ddp"]
    assert found.missing == ["ddp"]
    assert found.implementations[0].throughput_over_torch_ddp == 1.0


def test_under_torchrun_it_traces_one_implementation(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    name = "ddp_bucketed"
    flags = ["--profile", "--profile-implementation", name, "--profile-output-dir", "traces"]
    run_to_end([*launcher, PROGRAM, *SMALL, *flags], tmp_path)
    folder = DdpBenchmarkDir(tmp_path / "traces")
    assert {path.name for path in folder.root.iterdir()} == {
        f"{name}_rank_0_trace.json",
        f"{name}_rank_1_trace.json",
        f"{name}_summary.txt",
    }
    for rank in range(2):
        events = json.loads(folder.trace(name, rank).read_text())["traceEvents"]
        ranges = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        steps, warmup = 3 * 2, 1 * 2
        for part in ("forward_pass", "backward_pass", "gradient_sync", "optimizer_step"):
            assert ranges.count(part) == steps
        assert ranges.count("gradient_clipping_warmup") == warmup
        assert ranges.count("lr_scheduling") == warmup + 1  # 0, half, and the full rate once
        epochs = [range_ for range_ in ranges if range_.startswith("epoch_")]
        assert epochs == [
            "epoch_0_warmup_lr_0.000000",
            "epoch_1_training_lr_0.001000",
            "epoch_2_training_lr_0.001000",
        ]
        assert kineto.read(folder.trace(name, rank)).rank == rank
    text = folder.summary(name).read_text()
    assert "implementation    ddp_bucketed" in text
    assert re.search(r"0 +warmup +0\.000000", text)
