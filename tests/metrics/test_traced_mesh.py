"""A pipeline from nothing but traces of its kernels: stages, schedule, and who is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.commands._traces import analyze_traces
from aorta.readers.kineto import read_many
from tests.support import kineto
from tests.support.pipelines import Row, pipeline
from tests.support.traced_pipelines import SEND_RECV, traced

MS = 1_000_000
PLAIN, SLOW = 4, 12
"""ms of a forward."""


def in_a_row(rows: list[Row], replicas: int = 1) -> list[Row]:
    """The steps one after the other; replicas exchange gradients for a millisecond at the end of each."""
    length = max(int(row["start_ns"]) + int(row["duration_ns"]) for row in rows if row["step"] == 0)
    found = list(rows)
    last = {(row["step"], row["rank"]): row for row in rows}
    for row in last.values() if replicas > 1 else ():
        end = int(row["step"]) * 10**9 + length
        found.append({**row, "kind": "grads-all-reduce", "start_ns": end, "duration_ns": MS})
    length += MS if replicas > 1 else 0
    return [row | {"start_ns": int(row["start_ns"]) - int(row["step"]) * (10**9 - length)} for row in found]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("stages", "slow", "replicas", "coalesced"), [(2, 1, 1, True), (4, 2, 1, False), (3, 0, 2, True)]
)
def test_the_slow_stage_is_named(
    tmp_path: Path, schedule: str, stages: int, slow: int, replicas: int, coalesced: bool
) -> None:
    m = 6
    rows = pipeline(
        schedule, stages, m, lambda _, stage, __: (SLOW if stage == slow else PLAIN) * MS,
        steps=5, replicas=replicas, transfer=lambda _: MS // 10,
    )  # fmt: skip
    files = traced(tmp_path, in_a_row(rows, replicas), stages * replicas, coalesced=coalesced)
    found = analyze_traces(files)
    assert found.mesh is not None
    assert [(one.stage, one.of) for one in found.mesh.stages] == [(at, stages) for at in range(stages)]
    assert found.mesh.stages[slow].ranks == [replica * stages + slow for replica in range(replicas)]
    assert (found.mesh.schedule, found.mesh.microbatches) == (schedule, m)
    assert found.mesh.stages[slow].work_ms == pytest.approx(3 * m * SLOW)
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", found.mesh.stages[slow].ranks)
    first = found.findings[0]
    assert first.sub_cause == "stage_work"
    assert first.estimated_speedup is not None
    # Without it, all stages take the same: m + p - 1 passes, and what replicas exchange.
    without = (m + stages - 1) * 3 * PLAIN + (1 if replicas > 1 else 0)
    assert found.slowdown is not None
    assert found.slowdown.causes[0].step_ms == pytest.approx(without, rel=0.02)


def test_equal_stages_are_no_finding(tmp_path: Path) -> None:
    rows = pipeline("1f1b", 2, 8, lambda *_: PLAIN * MS, steps=5, transfer=lambda _: MS // 10)
    found = analyze_traces(traced(tmp_path, in_a_row(rows), 2))
    assert found.mesh is not None
    assert found.mesh.bubble is not None
    assert found.mesh.bubble.measured == pytest.approx(1 / 9, abs=0.01)
    assert found.slowdown is not None
    assert found.slowdown.value == pytest.approx(1.0, abs=0.01)
    assert "straggler" not in [finding.kind for finding in found.findings]


@pytest.mark.parametrize(("times", "used"), [(1, True), (3, False)])
def test_no_host_is_guilty_where_the_replay_misses_the_step(tmp_path: Path, times: int, used: bool) -> None:
    """Passes begin three times as far apart and take no longer: hosts hold the GPUs up in between."""
    rows = pipeline("1f1b", 2, 6, lambda *_: PLAIN * MS, steps=5, transfer=lambda _: MS // 10)
    apart = [
        row | {"start_ns": times * int(row["start_ns"]), "duration_ns": int(row["duration_ns"])}
        for row in in_a_row(rows)
    ]
    found = analyze_traces(traced(tmp_path, apart, 2))
    assert (found.slowdown is not None) is used
    said = [
        note for note in found.data_quality.notes if note.startswith("the pipeline's replayed step takes")
    ]
    assert len(said) == (0 if used else 1)
    for finding in [] if used else found.findings:
        assert finding.kind not in ("straggler", "communication") or finding.symptom_of is not None
    assert found.verdict.ranks == []


def test_a_batch_is_one_kernel_with_a_row_for_each_send_and_receive(tmp_path: Path) -> None:
    """Two calls before the launch, 1,024 floats each; another kernel with one call behind it."""
    named = {"Process Group Name": "3", "dtype": "Float", "In msg nelems": 1024, "Group size": 2}
    send, receive = {"Collective name": "send", **named}, {"Collective name": "recv", **named}
    events = [
        kineto.event("cpu_op", "record_param_comms", 1, 1, **send, **{"Dst Rank": 1}),
        kineto.event("cpu_op", "record_param_comms", 3, 1, **receive, **{"Src Rank": 1}),
        kineto.event("cuda_runtime", "cudaLaunchKernelExC", 5, 1, correlation=7),
        kineto.event("cpu_op", "record_param_comms", 8, 1, **send, **{"Dst Rank": 2}),
        kineto.event("cuda_runtime", "cudaLaunchKernelExC", 10, 1, correlation=8),
        kineto.kernel(SEND_RECV, 6, 20, stream=20, correlation=7),
        kineto.kernel(SEND_RECV, 30, 5, stream=20, correlation=8),
    ]
    (trace,) = read_many([kineto.write(tmp_path / "rank0.json", events, distributedInfo={"rank": 0})])
    assert not isinstance(trace, Exception)
    found = trace.collectives
    names = [trace.names[code] for code in found.group.tolist()]
    assert list(zip(found.event.tolist(), names, found.bytes_in.tolist(), strict=True)) == [
        (0, "3 own>1", 4096),
        (0, "3 1>own", 4096),
        (1, "3 own>2", 4096),
    ]
    assert {trace.names[code] for code in found.op.tolist()} == {"send_recv"}
