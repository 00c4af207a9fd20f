"""Whole runs: when the data does not suffice, what its quality is, what other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import FIRST_FAILURE, ProfilerChoice, RankExit
from aorta.readers.sacct import FIELDS
from aorta.runner.exits import describe_exit
from aorta.units import NS_PER_S
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed, change_json, change_records, finding, made, measured, reasons

# --- when the data does not suffice ------------------------------------------------------------------------


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


@pytest.mark.parametrize(("calls", "kind"), [({}, "healthy"), ({"reduce": 2}, "insufficient_data")])
def test_calls_that_could_not_be_timed_leave_communication_open(
    tmp_path: Path, calls: dict[str, int], kind: str
) -> None:
    """6 of 75 ms are exposed; two calls of rank 1 may take any part of the rest."""
    run = write_run(tmp_path, RunSpec())
    change_records(run, 1, untimed_calls=calls)
    found = analysed(run)
    assert found.verdict.kind == kind
    for rule in ("communication", "straggler"):
        assert (measured(found, rule).answer == "not_measurable") == bool(calls)
    if calls:
        assert "at least 8.0 % of the step; 2 calls" in str(measured(found, "communication").reason)
        assert any("communication takes at least 14 ms" in note for note in found.data_quality.notes)


def test_a_cause_is_named_beside_calls_that_could_not_be_timed(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(exposed_comm_ms=60.0))
    change_records(run, 0, untimed_calls={"send": 1})
    assert analysed(run).verdict.kind == "communication"


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
    assert "records of some ranks are missing" in kept.cause
    (action,) = kept.actions
    assert action.startswith("find out why some ranks left no records")
    assert found.blame == []
    assert measured(found, "straggler").reason == (
        "not measured: records of some ranks are missing, "
        "so waiting for these ranks cannot be told from transfer"
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
    assert found.verdict.kind == {"failed": "incomplete", "running": "insufficient_data"}[state]
    assert found.data_quality.state == state


@pytest.mark.parametrize(
    ("word", "said"), [("OUT_OF_ME+", "OUT_OF_MEMORY"), ("NODE_FAIL", "NODE_FAIL"), ("FAILED", None)]
)
def test_the_word_of_accounting_is_in_the_verdict(tmp_path: Path, word: str, said: str | None) -> None:
    run = write_run(tmp_path, RunSpec(state="failed"))
    job = json.loads(run.manifest.read_bytes())["job_id"]
    row = dict.fromkeys(FIELDS, "") | {"JobID": job, "State": word}
    run.sacct_summary.write_text("\n".join(" | ".join(line) for line in (FIELDS, row.values())) + "\n")
    found = analysed(run)
    assert found.verdict.kind == "incomplete"
    assert found.data_quality.failure == (said and f"Slurm's accounting says {said}")
    assert (said is None) or said in found.verdict.statement


def test_the_first_failure_is_in_the_verdict(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, state="failed"))
    assert analysed(run).data_quality.failure is None
    for index, (seconds, words) in enumerate(
        ((9, "rank 0 was killed by SIGTERM"), (8, "rank 3 exited with 1: no memory"))
    ):
        lost = [f"{FIRST_FAILURE}{words}"]
        change_json(run.node(index).status, ended_wall_ns=seconds * NS_PER_S, lost=lost)
    found = analysed(run)
    assert found.data_quality.failure == "rank 3 exited with 1: no memory"  # it ended first
    (said,) = [item for item in found.findings if item.kind == "incomplete"]
    assert "the job did not complete (failed): rank 3 exited with 1: no memory" in said.cause
    assert said.evidence["last_step"] == found.data_quality.last_step is not None


GONE = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


@pytest.mark.parametrize(
    ("exits", "ranks"),
    [
        ({0: (9, 1, None, GONE), 1: (8, None, "SIGKILL", None)}, [2]),
        ({0: (8, 1, None, GONE), 1: (9, None, "SIGKILL", None)}, [2]),  # node 0 noticed it sooner
        ({0: (8, 1, None, "ValueError: x"), 1: (9, 1, None, GONE)}, [0]),
        ({0: (8, 1, None, GONE)}, []),  # who was gone is not known
        ({}, []),
    ],
)
def test_the_rank_that_failed_first_is_the_verdict_s(tmp_path: Path, exits, ranks) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, state="failed"))
    for index, (seconds, code, name, error) in exits.items():
        words = describe_exit(RankExit(rank=2 * index, exit_code=code, signal=name, error=error))
        change_json(
            run.node(index).status, ended_wall_ns=seconds * NS_PER_S, lost=[f"{FIRST_FAILURE}{words}"]
        )
    found = analysed(run)
    (said,) = [item for item in found.findings if item.kind == "incomplete"]
    assert (found.verdict.kind, found.verdict.ranks, said.ranks) == ("incomplete", ranks, ranks)


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


def test_steps_without_a_record_are_told_with_how_many_and_where(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, ranks_per_node=1))
    assert problems(analysed(run)) == []
    for rank, (first, last) in enumerate(((20, 30), (20, 32))):
        lines = run.records(rank).read_bytes().splitlines(keepends=True)
        run.records(rank).write_bytes(b"".join(lines[:first] + lines[last:]))
    assert problems(analysed(run)) == [
        "None: records of ranks 0, 1 are missing (up to 12 steps, most of them after step 19 of rank 1), "
        "because they could not be written"
    ]


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
