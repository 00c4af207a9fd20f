"""Whole runs to verdicts: what is the cause, who, and what is only its symptom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, Finding, Kind, Measured
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import ProfilerChoice
from aorta.config.schema import Capture, Config, Dataloader, Dataset, Thresholds, Training
from aorta.diagnosis.analyse import analyse
from aorta.readers.run import read_run
from tests.support.synthetic import RunSpec, write_run


def analysed(run: RunDir) -> Analysis:
    return analyse(read_run(run, query_accounting=False))


def made(tmp_path: Path, **spec: Any) -> Analysis:
    return analysed(write_run(tmp_path, RunSpec(**spec)))


def finding(analysis: Analysis, kind: Kind) -> Finding | None:
    return next((item for item in analysis.findings if item.kind == kind), None)


def measured(analysis: Analysis, kind: Kind) -> Measured:
    return next(item for item in analysis.measured if item.kind == kind)


def change_records(run: RunDir, rank: int, **fields: Any) -> None:
    lines = [
        json.dumps({**json.loads(line), **fields}) for line in run.records(rank).read_text().splitlines()
    ]
    run.records(rank).write_text("\n".join(lines) + "\n")


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


# --- causes ------------------------------------------------------------------------------------------------


def test_a_slow_loader_on_one_rank_is_data_loading_there_and_communication_its_symptom(
    tmp_path: Path,
) -> None:
    found = made(tmp_path, nodes=2, extra_data_ms={1: 80.0}, clock_offset_ns={1: 9_000_000_000})
    assert found.verdict.kind == "data_loading"
    assert found.verdict.ranks == [1]
    assert "on rank 1" in found.verdict.statement
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
    low = (loading - 0.3 * step) / 0.7  # removed, the loader is at 30 % of what is left
    assert cause.estimated_speedup is not None
    assert cause.estimated_speedup.low == pytest.approx(step / (step - low))
    assert cause.estimated_speedup.high == pytest.approx(step / (step - loading))
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


def test_exchange_that_nothing_hides_is_communication(tmp_path: Path) -> None:
    found = made(tmp_path, exposed_comm_ms=40.0)
    assert (found.verdict.kind, found.verdict.ranks) == ("communication", [])
    cause = finding(found, "communication")
    assert cause is not None
    assert cause.value == pytest.approx(100 * 40 / (4 + 60 + 40 + 5))
    assert measured(found, "straggler").value == 0.0
    assert any("distributed.bucket_cap_mb (now 25)" in action for action in cause.actions)


def test_an_idle_gpu_under_a_cause_is_its_symptom_and_alone_is_the_verdict(tmp_path: Path) -> None:
    under = made(tmp_path / "a", device="cuda", exposed_comm_ms=60.0)
    idle = finding(under, "gpu_underutilization")
    assert idle is not None
    assert idle.symptom_of == "communication"
    alone = made(tmp_path / "b", device="cuda", host_ms=60.0)
    assert alone.verdict.kind == "gpu_underutilization"
    cause = finding(alone, "gpu_underutilization")
    assert cause is not None
    assert cause.value == pytest.approx(100 * 60 / (4 + 60 + 6 + 60))
    assert "the host" in cause.cause
    assert cause.estimated_speedup is not None
    assert cause.estimated_speedup.high == pytest.approx(130 / 60)


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


# --- not measurable, and measured zero ---------------------------------------------------------------------


def test_without_a_gpu_its_rules_answer_not_measurable(tmp_path: Path) -> None:
    found = made(tmp_path, job_memory_limit_bytes=None)
    for kind in ("gpu_underutilization", "memory_pressure"):
        answer = measured(found, kind)
        assert answer.value is None
        assert not answer.fired
        assert answer.reason is not None
        assert answer.reason.startswith("not measurable: no GPU")


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
        "not measurable: no breakdown in the step records, and the driver gives no utilisation"
        if driver is None
        else "an upper bound: the driver's counter"
    )


def test_records_without_communication_are_not_zero_communication(tmp_path: Path) -> None:
    silent = made(tmp_path / "a", hidden_comm_ms=0.0, exposed_comm_ms=0.0)
    assert measured(silent, "communication").value is None
    assert "hold no communication" in (measured(silent, "communication").reason or "")
    assert "the records hold no collectives" in (measured(silent, "straggler").reason or "")
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
        training=Training(batch_size=8),
        capture=Capture(warmup_steps=10),
    )
    found = made(tmp_path, data_wait_ms=60.0, config=config)  # 60 / 131 is 45.8 %
    assert found.verdict.kind == kind
    assert found.thresholds["data_wait_pct"] == threshold
    assert measured(found, "data_loading").threshold == threshold


def test_actions_name_the_knobs_as_they_are_set(tmp_path: Path) -> None:
    config = Config(dataset=Dataset(delay_ms=12.5), dataloader=Dataloader(num_workers=0))
    cause = finding(made(tmp_path / "a", data_wait_ms=60.0, config=config), "data_loading")
    assert cause is not None
    assert cause.actions[0].startswith("dataset.delay_ms is 12.5:")
    assert cause.actions[1].startswith("dataloader.num_workers is 0")
    run = write_run(tmp_path / "b", RunSpec(data_wait_ms=60.0, config=config))
    plan = json.loads(run.manifest.read_text())["plan"]
    change_json(run.manifest, plan={**plan, "workload": None, "command": ["mine.py"]})
    own = finding(analysed(run), "data_loading")
    assert own is not None
    assert not any("dataset.delay_ms" in action or "num_workers" in action for action in own.actions)


# --- when the data does not suffice ------------------------------------------------------------------------


def reasons(analysis: Analysis) -> list[str]:
    assert analysis.verdict.kind == "insufficient_data"
    (only,) = analysis.findings
    found: list[str] = only.evidence["reasons"]
    return found


def test_healthy_is_said_when_the_data_suffices(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert found.verdict.kind == "healthy"
    assert found.findings == []
    assert "30 steady steps of 2 ranks" in found.verdict.statement
    assert found.data_quality.problems == []
    assert found.data_quality.notes == []


@pytest.mark.parametrize(("steps", "enough"), [(19, False), (20, True)])
def test_few_steady_steps_are_no_verdict(tmp_path: Path, steps: int, enough: bool) -> None:
    found = made(tmp_path, steps=steps, warmup=10, data_wait_ms=200.0)
    assert found.verdict.kind == ("data_loading" if enough else "insufficient_data")
    assert found.data_quality.steady_steps == steps - 10
    if not enough:
        assert reasons(found) == ["few_steady_steps"]
        assert measured(found, "data_loading").value is None


def test_a_missing_rank_is_named_and_nothing_is_healthy_without_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2))
    run.records(2).unlink()
    found = analysed(run)
    assert reasons(found) == ["ranks_missing"]
    assert found.throughput is None
    assert "rank 2 left no step records" in [problem.reason for problem in found.data_quality.problems]
    assert (found.data_quality.ranks_expected, found.data_quality.ranks_seen) == (4, 3)


@pytest.mark.parametrize("extra", [{"extra_data_ms": {3: 300.0}}, {"extra_compute_ms": {3: 300.0}}])
def test_waiting_for_a_rank_without_records_is_not_called_communication(
    tmp_path: Path, extra: dict[str, Any]
) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, **extra))
    whole = analysed(run)
    assert whole.verdict.kind in ("data_loading", "straggler")
    assert whole.verdict.ranks == [3]
    run.records(3).unlink()
    found = analysed(run)
    assert found.verdict.kind == "insufficient_data"
    assert found.findings[0].evidence == {"reasons": ["ranks_missing"]}
    assert "3 of 4 ranks left step records; the " in found.verdict.statement
    kept = finding(found, "communication")
    assert kept is not None
    assert (kept.symptom_of, kept.estimated_speedup) == (None, None)
    assert "records of ranks are missing" in kept.cause
    (action,) = kept.actions
    assert action.startswith("find out why ranks left no records")
    assert found.blame == []
    assert measured(found, "straggler").reason == (
        "not measurable: records of ranks are missing, and waiting for those cannot be told from transfer"
    )


def test_exchange_is_a_verdict_with_all_ranks_and_none_without_one(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, exposed_comm_ms=90.0))
    whole = analysed(run)
    cause = finding(whole, "communication")
    assert (whole.verdict.kind, whole.findings[0]) == ("communication", cause)
    assert cause is not None
    assert cause.estimated_speedup is not None
    run.records(0).unlink()
    assert analysed(run).verdict.kind == "insufficient_data"


def test_a_seen_rank_that_others_wait_for_is_no_straggler_while_one_is_unseen(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, extra_compute_ms={1: 90.0}))
    assert analysed(run).verdict.kind == "straggler"
    run.records(3).unlink()
    found = analysed(run)
    assert found.verdict.kind == "insufficient_data"
    assert finding(found, "straggler") is None


def test_a_cause_is_still_named_when_a_rank_is_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, data_wait_ms=90.0))
    run.records(3).unlink()
    found = analysed(run)
    # Of the ranks that were seen, by their own loaders.
    assert (found.verdict.kind, found.verdict.ranks) == ("data_loading", [0, 1, 2])
    assert measured(found, "data_loading").value == pytest.approx(100 * 90 / (90 + 60 + 6 + 5))


@pytest.mark.parametrize(("state", "code"), [("failed", "job_failed"), ("running", "job_not_ended")])
def test_a_job_that_failed_or_never_ended_is_not_healthy(tmp_path: Path, state: str, code: str) -> None:
    found = made(tmp_path, state=state)
    assert reasons(found) == [code]
    assert found.data_quality.state == state


def test_nothing_at_all_is_an_answer(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    for rank in (0, 1):
        run.records(rank).unlink()
    found = analysed(run)
    assert reasons(found) == ["no_step_records"]
    assert found.breakdown.per_rank == []
    assert found.utilization is None
    assert found.device is None


def test_a_folder_of_records_alone_is_analysed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "results", RunSpec(nodes=2, exposed_comm_ms=50.0))
    bare = tmp_path / "artifacts"
    bare.mkdir()
    for rank in range(4):
        run.records(rank).rename(bare / run.records(rank).name)
    found = analysed(RunDir(bare))
    assert found.verdict.kind == "communication"
    assert (found.scenario, found.job_id, found.world_size) == (None, None, 4)
    assert found.data_quality.state is None


# --- data quality ------------------------------------------------------------------------------------------


def problems(analysis: Analysis) -> list[str]:
    return [f"{problem.file}: {problem.reason}" for problem in analysis.data_quality.problems]


def test_a_killed_rank_and_what_its_agent_lost_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, state="failed"))
    marker = json.loads(run.node(1).status.read_text())
    marker["ranks"] = [{"rank": 3, "exit_code": None, "signal": "SIGKILL", "error": None}]
    change_json(run.node(1).status, ranks=marker["ranks"], lost=["trace of rank 3"])
    said = problems(analysed(run))
    assert "nodes/node1/status.json: rank 3 ended by SIGKILL" in said
    assert "nodes/node1/status.json: node2: trace of rank 3" in said


def test_a_node_that_never_reported_and_one_without_samples_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=3, ranks_per_node=1))
    manifest = json.loads(run.manifest.read_text())
    change_json(run.manifest, nodes=manifest["nodes"][:2], nodes_missing=[2])
    run.node(1).cpu_csv.unlink()
    said = problems(analysed(run))
    assert "None: node 2 never reported" in said
    assert "nodes/node1/cpu_monitor.csv: no samples of node2" in said
    assert not any("node0" in item for item in said)


def test_gpu_samples_are_missed_only_where_there_are_gpus(tmp_path: Path) -> None:
    assert problems(made(tmp_path / "a", device="cpu")) == []
    run = write_run(tmp_path / "b", RunSpec(device="cuda"))
    run.node(0).gpu_csv.unlink()
    monitor = json.loads(run.node(0).monitor_status.read_text())
    change_json(run.node(0).monitor_status, **{**monitor, "gpu_reason": "driver not loaded"})
    assert problems(analysed(run)) == ["nodes/node0/gpu_monitor.csv: no samples of node1: driver not loaded"]


def test_missed_samples_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    monitor = json.loads(run.node(0).monitor_status.read_text())
    change_json(run.node(0).monitor_status, missed=3)
    assert problems(analysed(run)) == [
        f"nodes/node0/monitor_status.json: 3 of {monitor['samples'] + 3} samples of node1 were missed"
    ]


def test_truncated_records_are_named_and_the_rest_used(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.records(1).write_bytes(run.records(1).read_bytes()[:-100])
    found = analysed(run)
    assert found.verdict.kind == "healthy"
    assert found.data_quality.steady_steps == 29
    assert problems(found)[0].startswith("rank_1_metrics.jsonl: line 40 is not usable")


def test_records_that_count_global_samples_are_caught(tmp_path: Path) -> None:
    """`samples` is the rank's own; 16 ranks that each write the global batch would be 16 times too fast."""
    right = made(tmp_path / "a", ranks_per_node=16)
    assert right.throughput is not None
    assert right.throughput.cross_check_ratio == pytest.approx(1.0)
    assert not any("samples of a rank" in note for note in right.data_quality.notes)
    run = write_run(tmp_path / "b", RunSpec(ranks_per_node=16))
    for rank in range(16):
        change_records(run, rank, samples=16 * 8)
    assert any("counts 128 samples of a rank" in note for note in analysed(run).data_quality.notes)


def test_time_between_steps_is_told_from_few_slow_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", RunSpec(ranks_per_node=1))
    steps = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for number, record in enumerate(steps):
        for clock in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            record[clock] += number * 69_000_000  # as long as a step of 4 + 60 + 5 ms
    run.records(0).write_text("\n".join(map(json.dumps, steps)) + "\n")
    # 30 steps and the 29 gaps between them.
    ratio = 30 / 59
    assert analysed(run).data_quality.notes == [
        f"throughput is {ratio:.2f} times global batch / mean step: {100 * (1 - ratio):.0f} % of the time "
        "lies between steps"
    ]
    skewed = write_run(tmp_path / "b", RunSpec(ranks_per_node=1))
    steps = [json.loads(line) for line in skewed.records(0).read_text().splitlines()]
    for number, record in enumerate(steps):
        late = 600_000_000 if number == 35 else 0
        record["breakdown"]["host_ns"] += late
        for clock in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            record[clock] += 600_000_000 if number > 35 or (number == 35 and "end" in clock) else 0
    skewed.records(0).write_text("\n".join(map(json.dumps, steps)) + "\n")
    assert analysed(skewed).data_quality.notes == [
        f"some steps are far slower than the rest: the mean step takes {69 + 600 / 30:.1f} ms, "
        "the median one 69.0 ms"
    ]


def test_nodes_of_one_machine_are_said_to_share_it(tmp_path: Path) -> None:
    found = made(tmp_path, nodes=2, executor="local", separate_hosts=False)
    assert found.shared_machine
    assert any("share one machine" in note for note in found.data_quality.notes)


ACCOUNTING = """\
JobID     | State   | ExitCode | NNodes | NTasks | MaxRSS   | ReqMem
101       | {state} | 0:0      | 1      |        |          | 16000M
101.batch | {state} | 0:0      | 1      | 8      | 1947276K |
"""


def cores_note(tmp_path: Path, executor: str = "local", **node: Any) -> list[str]:
    """What is said about cores of a run of two nodes with 2 ranks each, whose infos hold `node`."""
    run = write_run(tmp_path, RunSpec(nodes=2, executor=executor))
    manifest = json.loads(run.manifest.read_text())
    change_json(run.manifest, nodes=[{**info, "machine": "m", **node} for info in manifest["nodes"]])
    return [note for note in analysed(run).data_quality.notes if "waiting for a core" in note]


WAITING = "times contain waiting for a core, and exposed communication is partly that"


@pytest.mark.parametrize(
    ("node", "notes"),
    [
        ({"cpus_usable": 3}, [f"4 ranks share 3 CPUs: {WAITING}"]),
        ({"cpus_usable": 1}, [f"4 ranks share 1 CPU: {WAITING}"]),
        ({"cpus_usable": 4}, []),
        ({"cpus_usable": 3, "machine": None}, []),  # 2 ranks each on 3 CPUs of its own
        ({"cpus_usable": 1, "machine": None}, [f"2 ranks share 1 CPU: {WAITING}"]),
        (
            {"cpus_usable": 7, "environment": {"OMP_NUM_THREADS": "2"}},
            [f"4 ranks with 2 threads each share 7 CPUs: {WAITING}"],
        ),
        ({"cpus_usable": 8, "environment": {"OMP_NUM_THREADS": "2"}}, []),
    ],
)
def test_more_ranks_and_threads_than_cpus_are_said(
    tmp_path: Path, node: dict[str, Any], notes: list[str]
) -> None:
    assert cores_note(tmp_path, **node) == notes


@pytest.mark.parametrize(
    ("executor", "machine_cpus", "said"),
    [("slurm", 3, True), ("slurm", 8, False), ("slurm", None, True), ("local", 8, True)],
)
def test_nodes_that_were_given_parts_of_a_machine_do_not_share_them(
    tmp_path: Path, executor: str, machine_cpus: int | None, said: bool
) -> None:
    assert bool(cores_note(tmp_path, executor, cpus_usable=3, cpus_machine=machine_cpus)) is said


def test_the_configured_threads_count_for_the_trainer(tmp_path: Path) -> None:
    for threads, said in ((2, True), (1, False)):
        run = write_run(
            tmp_path / str(threads), RunSpec(config=Config(training=Training(cpu_threads=threads)))
        )
        notes = analysed(run).data_quality.notes
        assert (f"2 ranks with 2 threads each share 2 CPUs: {WAITING}" in notes) is said


def test_threads_beside_a_gpu_are_not_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda", config=Config(training=Training(cpu_threads=8))))
    assert not any("waiting for a core" in note for note in analysed(run).data_quality.notes)


def test_accounting_decides_how_the_job_ended(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.sacct_summary.write_text(ACCOUNTING.format(state="OUT_OF_MEMORY"))
    found = analysed(run)
    assert found.data_quality.state == "failed"
    assert any("accounting says OUT_OF_MEMORY" in note for note in found.data_quality.notes)
    assert reasons(found) == ["job_failed"]


def test_accounting_that_lags_behind_leaves_the_markers_word(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.sacct_summary.write_text(ACCOUNTING.format(state="RUNNING"))
    found = analysed(run)
    assert found.data_quality.state == "completed"
    assert any("not complete" in note for note in found.data_quality.notes)


def test_host_memory_by_accounting_is_called_an_upper_estimate(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.sacct_summary.write_text(ACCOUNTING.format(state="COMPLETED"))
    found = analysed(run)
    note = next(note for note in found.data_quality.notes if "memory" in note)
    assert "about 95 %" in note
    assert "upper estimate (8 tasks × the largest task's MaxRSS)" in note
    assert finding(found, "memory_pressure") is None


# --- the contract ------------------------------------------------------------------------------------------


def test_the_analysis_survives_json_and_names_what_others_read(tmp_path: Path) -> None:
    found = made(tmp_path, nodes=2, extra_data_ms={1: 80.0}, device="cuda")
    text = msgspec.json.encode(found)
    assert msgspec.json.decode(text, type=Analysis) == found
    tree = json.loads(text)
    assert {"schema_version", "verdict", "findings", "breakdown", "blame", "data_quality"} <= set(tree)
    row = tree["breakdown"]["per_rank"][0]
    parts = ("compute_ms", "exposed_comm_ms", "exposed_copy_ms", "data_wait_ms", "host_ms")
    assert sum(row[part] for part in parts) == pytest.approx(row["step_ms"], abs=1e-9)
    assert row["wait_ms"] + row["transfer_ms"] == pytest.approx(row["comm_ms"], abs=1e-9)


def test_power_of_start_up_and_tail_is_left_out(tmp_path: Path) -> None:
    found = made(tmp_path, device="cuda", startup_s=6.0, tail_s=6.0, gpu_power_w=(120.0, 720.0, 300.0))
    assert found.utilization is not None
    assert found.utilization.gpu_power_w == pytest.approx(720.0)


def test_the_reasons_of_a_profiler_do_not_matter(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    manifest = json.loads(run.manifest.read_text())
    choice = msgspec.to_builtins(ProfilerChoice(requested="nsys", resolved="nsys", reason="found"))
    change_json(run.manifest, nodes=[{**node, "profiler": choice} for node in manifest["nodes"]])
    assert analysed(run).verdict.kind == "healthy"


# --- what no record covers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap_share", "verdict"), [(0.9, "insufficient_data"), (0.1, "healthy")])
def test_time_between_steps_is_in_no_record_and_not_healthy(
    tmp_path: Path, gap_share: float, verdict: str
) -> None:
    run = write_run(tmp_path, RunSpec(ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    step = lines[0]["mono_end_ns"] - lines[0]["mono_start_ns"]
    gap = round(step * gap_share / (1 - gap_share))
    for number, line in enumerate(lines):
        for name in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            line[name] += number * gap
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = analysed(run)
    assert found.verdict.kind == verdict
    if verdict != "healthy":
        assert found.findings[0].evidence["reasons"] == ["time_between_steps"]
        assert "90 % of the time lies between steps" in found.verdict.statement


@pytest.mark.parametrize(("loading", "verdict"), [(4.0, "insufficient_data"), (90.0, "data_loading")])
def test_records_alone_are_never_healthy_but_findings_stand(
    tmp_path: Path, loading: float, verdict: str
) -> None:
    run = write_run(tmp_path, RunSpec(data_wait_ms=loading))
    run.manifest.unlink()
    for _, node in run.nodes():
        node.status.unlink()
    found = analysed(run)
    assert found.verdict.kind == verdict
    if verdict == "insufficient_data":
        assert found.findings[0].evidence["reasons"] == ["no_job_record"]


def test_a_clock_that_goes_back_between_steps_gives_no_rate(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for line in lines[-1:]:
        step = line["mono_end_ns"] - line["mono_start_ns"]
        line["mono_start_ns"], line["mono_end_ns"] = 0, step
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert analysed(run).throughput is None
