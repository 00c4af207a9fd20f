"""Whole runs to verdicts: what is the cause, who, and what is only its symptom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from aorta.config.schema import (
    CaptureConfig,
    Config,
    DataloaderConfig,
    DatasetConfig,
    DistributedConfig,
    Thresholds,
    TrainingConfig,
)
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed, change_json, change_records, finding, made, measured

# --- causes ------------------------------------------------------------------------------------------------


def test_a_slow_loader_on_one_rank_is_data_loading_there_and_communication_its_symptom(
    tmp_path: Path,
) -> None:
    found = made(tmp_path, nodes=2, extra_data_ms={1: 80.0}, clock_offset_ns={1: 9_000_000_000})
    assert found.verdict.kind == "data_loading"
    assert found.verdict.ranks == [1]
    assert found.verdict.statement.startswith("Rank 1 spends ")
    cause, symptom = finding(found, "data_loading"), finding(found, "communication")
    assert cause is not None
    assert symptom is not None
    assert (cause.ranks, cause.nodes, cause.symptom_of) == ([1], ["node1"], None)
    assert (symptom.symptom_of, symptom.estimated_speedup) == ("data_loading", None)
    assert found.findings[0] is cause
    assert found.blame[0].rank == 1
    assert found.blame[0].cause == "data_loading"
    # Bucket 0 hides 0.2 × 60 ms of each of the other three ranks' wait of 80, bucket 1 finds 4 of it again.
    assert found.blame[0].lost_ms_per_step == pytest.approx(3 * (80 - 12 + 4))
    # Rank 1: 4 + 80 of loader in a step of 84 + 60 + 6 + 5.
    assert cause.value == pytest.approx(100 * 84 / 155)


def test_slow_loaders_everywhere_are_data_loading_on_all_ranks(tmp_path: Path) -> None:
    found = made(tmp_path, ranks_per_node=4, data_wait_ms=60.0)
    assert (found.verdict.kind, found.verdict.ranks) == ("data_loading", [])
    cause = finding(found, "data_loading")
    assert cause is not None
    assert cause.value == pytest.approx(100 * 60 / (60 + 60 + 6 + 5))
    step, loading = 131, 60
    gain = cause.estimated_speedup
    assert gain is not None
    assert gain.basis == "replay"
    assert gain.step_ms == pytest.approx(step - loading)
    assert gain.low == pytest.approx(gain.high) == pytest.approx(step / (step - loading))
    assert finding(found, "communication") is None


def test_a_rank_that_computes_longer_is_a_straggler(tmp_path: Path) -> None:
    found = made(tmp_path, nodes=3, ranks_per_node=1, extra_compute_ms={2: 60.0})
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [2])
    cause, symptom = finding(found, "straggler"), finding(found, "communication")
    assert cause is not None
    assert symptom is not None
    assert cause.nodes == ["node3"]
    assert "rank 2" in cause.cause
    assert symptom.symptom_of == "straggler"
    assert any("node3" in action for action in cause.actions)


@pytest.mark.parametrize("jitter_ms", [0.0, 2.0])
def test_a_node_all_of_whose_ranks_are_slow_is_the_straggler(tmp_path: Path, jitter_ms: float) -> None:
    """In each step one of the eight is the last, and alone has the charge."""
    slow = dict.fromkeys(range(8, 16), 60.0)
    found = made(
        tmp_path, nodes=2, ranks_per_node=8, steps=24, jitter_ms=jitter_ms, extra_compute_ms=slow,
        monitor_interval_s=2.0,
    )  # fmt: skip
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", list(range(8, 16)))
    assert found.findings[0].nodes == ["node2"]
    assert found.findings[0].sub_cause == "slow_node"
    assert found.lateness is not None
    assert (found.lateness.scope, [node.host for node in found.lateness.nodes]) == ("node", ["node2"])
    gain = found.findings[0].estimated_speedup
    assert gain is not None
    # All of it goes: with seven of the eight left, nothing would be gained. 60 of 135 ms are theirs.
    assert gain.expected is not None
    assert gain.expected > 1.5


def test_exchange_that_nothing_hides_is_communication(tmp_path: Path) -> None:
    found = made(tmp_path, exposed_comm_ms=40.0)
    assert (found.verdict.kind, found.verdict.ranks) == ("communication", [])
    cause = finding(found, "communication")
    assert cause is not None
    assert cause.value == pytest.approx(100 * 40 / (4 + 60 + 40 + 5))
    assert measured(found, "straggler").value == 0.0
    assert any("training.gradient_accumulation (now 1)" in action for action in cause.actions)


def test_an_idle_gpu_under_a_cause_is_its_symptom_and_alone_is_the_verdict(tmp_path: Path) -> None:
    under = made(tmp_path / "a", device="cuda", exposed_comm_ms=60.0)
    idle = finding(under, "gpu_underutilization")
    assert idle is not None
    assert idle.symptom_of == "communication"
    hosted = made(tmp_path / "b", device="cuda", host_ms=60.0)
    assert (hosted.verdict.kind, hosted.findings[0].sub_cause) == ("host_bound", "host_work")
    symptom = finding(hosted, "gpu_underutilization")
    assert symptom is not None
    assert symptom.symptom_of == "host_bound"
    # Loader and host each stay below 30 % of the step, and together leave the GPU less than 70 %.
    alone = made(tmp_path / "c", device="cuda", host_ms=20.0, data_wait_ms=18.0)
    assert alone.verdict.kind == "gpu_underutilization"
    cause = finding(alone, "gpu_underutilization")
    assert cause is not None
    assert cause.value == pytest.approx(100 * 60 / (18 + 60 + 6 + 20))
    assert "the host" in cause.cause
    assert cause.estimated_speedup is not None
    assert cause.estimated_speedup.high == pytest.approx(104 / 60)
    assert cause.estimated_speedup.basis == "bounds"


def test_the_driver_says_busy_while_kernels_wait(tmp_path: Path) -> None:
    found = made(tmp_path, device="cuda", exposed_comm_ms=60.0, gpu_util_pct=100.0)
    assert found.utilization is not None
    assert found.utilization.gpu_util_pct == 100.0
    assert found.utilization.effective_gpu_util_pct == pytest.approx(100 * 60 / 129)
    assert measured(found, "gpu_underutilization").fired


def test_the_larger_of_two_causes_is_the_verdict(tmp_path: Path) -> None:
    found = made(tmp_path, ranks_per_node=1, nodes=2, data_wait_ms=70.0, exposed_comm_ms=50.0)
    assert [(item.kind, item.symptom_of) for item in found.findings] == [
        ("data_loading", None),
        ("communication", None),
    ]
    assert found.verdict.kind == "data_loading"


def test_full_memory_is_pressure_and_costs_no_time(tmp_path: Path) -> None:
    found = made(tmp_path, device="cuda", gpu_memory_used_mb=95.0, gpu_memory_total_mb=100.0)
    assert found.verdict.kind == "memory_pressure"
    cause = finding(found, "memory_pressure")
    assert cause is not None
    assert cause.value == pytest.approx(95.0)
    assert cause.estimated_speedup is None
    assert cause.evidence["of"] == "GPU memory, by the monitor"


@pytest.mark.parametrize(("used", "fired"), [(9 << 30, False), (91 << 28, True)])
def test_host_memory_is_measured_against_the_jobs_limit(tmp_path: Path, used: int, fired: bool) -> None:
    found = made(tmp_path, job_memory_used_bytes=used, job_memory_limit_bytes=100 << 28)
    assert measured(found, "memory_pressure").fired is fired
    assert measured(found, "memory_pressure").value == pytest.approx(100 * used / (100 << 28))


@pytest.mark.parametrize(("percent", "fired"), [("40.0", False), ("95.5", True)])
def test_a_job_without_a_limit_has_the_machines_memory(tmp_path: Path, percent: str, fired: bool) -> None:
    run = write_run(tmp_path, RunSpec(job_memory_limit_bytes=None))
    samples = run.node(0).cpu_csv
    samples.write_text(samples.read_text().replace(",40.0,", f",{percent},"))
    found = analysed(run)
    answer = measured(found, "memory_pressure")
    assert (answer.value, answer.fired) == (float(percent), fired)
    if fired:
        assert found.findings[0].sub_cause == "host_memory"
        assert "a node's memory is 96 % full" in found.verdict.statement


# --- not measured, and measured zero ---------------------------------------------------------------------


def test_without_a_gpu_and_samples_its_rules_answer_not_measurable(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.node(0).cpu_csv.unlink()
    found = analysed(run)
    for kind in ("gpu_underutilization", "memory_pressure"):
        answer = measured(found, kind)
        assert answer.value is None
        assert not answer.fired
        assert answer.reason is not None
        assert answer.reason.startswith("not measured: no GPU")


@pytest.mark.parametrize(("driver", "fired"), [(None, False), (0.0, True), (97.0, False)])
def test_utilisation_that_is_not_available_is_no_underuse(
    tmp_path: Path, driver: float | None, fired: bool
) -> None:
    """A virtual GPU gives `[N/A]`; a GPU that is measured at 0 % is another matter."""
    run = write_run(tmp_path, RunSpec(device="cuda", gpu_util_pct=driver))
    for rank in (0, 1):
        change_records(run, rank, breakdown=None)
    found = analysed(run)
    answer = measured(found, "gpu_underutilization")
    assert answer.value == driver
    assert answer.fired is fired
    assert (finding(found, "gpu_underutilization") is not None) is fired
    assert answer.reason == (
        "not measured: no breakdown in the step records, and the driver reports no utilisation"
        if driver is None
        else "an upper bound: the driver's counter"
    )


def test_records_without_communication_are_not_zero_communication(tmp_path: Path) -> None:
    silent = made(tmp_path / "a", hidden_comm_ms=0.0, exposed_comm_ms=0.0)
    assert measured(silent, "communication").value is None
    assert "contain no communication" in (measured(silent, "communication").reason or "")
    assert "the records contain no collectives" in (measured(silent, "straggler").reason or "")
    alone = made(tmp_path / "b", ranks_per_node=1)
    assert measured(alone, "communication").value == 0.0
    hidden = made(tmp_path / "c", exposed_comm_ms=0.0)
    assert measured(hidden, "communication").value == 0.0


def test_no_loader_wait_is_measured_as_zero(tmp_path: Path) -> None:
    assert measured(made(tmp_path, data_wait_ms=0.0), "data_loading").value == 0.0


# --- thresholds and knobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "kind"), [(46.0, "healthy"), (45.0, "data_loading")])
def test_thresholds_are_the_configurations(tmp_path: Path, threshold: float, kind: str) -> None:
    config = Config(
        thresholds=Thresholds(data_wait_pct=threshold),
        training=TrainingConfig(batch_size=8),
        capture=CaptureConfig(warmup_steps=10),
    )
    found = made(tmp_path, data_wait_ms=60.0, config=config)  # 60 / 131 is 45.8 %
    assert found.verdict.kind == kind
    assert found.thresholds["data_wait_pct"] == threshold
    assert measured(found, "data_loading").threshold == threshold


def test_actions_name_the_knobs_as_they_are_set(tmp_path: Path) -> None:
    config = Config(dataset=DatasetConfig(delay_ms=12.5), dataloader=DataloaderConfig(num_workers=0))
    cause = finding(made(tmp_path / "a", data_wait_ms=60.0, config=config), "data_loading")
    assert cause is not None
    assert cause.actions[0].startswith("set dataset.delay_ms to 0 (now 12.5:")
    assert cause.actions[1].startswith("set dataloader.num_workers to 2")
    run = write_run(tmp_path / "b", RunSpec(data_wait_ms=60.0, config=config))
    plan = json.loads(run.manifest.read_text())["plan"]
    change_json(run.manifest, plan={**plan, "workload": None, "command": ["mine.py"]})
    own = finding(analysed(run), "data_loading")
    assert own is not None
    assert not any("dataset.delay_ms" in action or "num_workers" in action for action in own.actions)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_knobs_of_the_exchange_are_those_of_the_strategy(
    tmp_path: Path, strategy: Literal["fsdp", "ddp"]
) -> None:
    """Buckets are DDP's alone; sharded training has none to size."""
    config = Config(distributed=DistributedConfig(strategy=strategy))
    cause = finding(made(tmp_path, exposed_comm_ms=90.0, config=config), "communication")
    assert cause is not None
    said = " ".join(cause.actions)
    assert ("distributed.bucket_cap_mb, now 25" in said) is (strategy == "ddp")
    assert ("fsdp.sharding_strategy is full_shard" in said) is (strategy == "fsdp")


def test_a_slow_host_has_knobs_too(tmp_path: Path) -> None:
    cause = finding(made(tmp_path, host_ms=90.0), "host_bound")
    assert cause is not None
    assert "training.log_interval (now 5)" in cause.actions[0]
    assert "training.cpu_threads (now 0)" in cause.actions[1]
