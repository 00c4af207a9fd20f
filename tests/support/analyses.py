"""Small analyses with round numbers, for the documents' tests."""

from __future__ import annotations

from typing import Any

import msgspec

from aorta.artefacts.analysis import Analysis, DataQuality, Finding, RuleMeasurement, Speedup, Verdict
from aorta.artefacts.measured import Blame, BreakdownTable, RankBreakdown, Throughput, Utilization

THRESHOLDS = {
    "effective_gpu_utilization_pct": 70.0,
    "data_wait_pct": 30.0,
    "exposed_comm_pct": 20.0,
    "memory_used_pct": 90.0,
}

MEASURED = [
    RuleMeasurement(
        kind="gpu_underutilization",
        value=None,
        threshold=70.0,
        unit="%",
        fired=False,
        reason="not measured: no GPU in the job",
    ),
    RuleMeasurement(kind="data_loading", value=44.4, threshold=30.0, unit="%", fired=True),
    RuleMeasurement(kind="communication", value=33.3, threshold=20.0, unit="%", fired=True),
    RuleMeasurement(kind="memory_pressure", value=0.0, threshold=90.0, unit="%", fired=False),
]
SYMPTOM = Finding(
    kind="communication",
    severity="warning",
    cause="rank 0 waits for rank 1",
    ranks=[0],
    nodes=["node1"],
    value=33.3,
    threshold=20.0,
    unit="%",
    evidence={},
    estimated_speedup=None,
    actions=[],
    symptom_of="data_loading",
)


def rank_row(
    rank: int, host: str | None = None, data_ms: float = 10.0, comm_ms: float = 30.0
) -> RankBreakdown:
    """A step of 50 + data + comm: compute 40, host 10, and communication of which 10 ms are hidden."""
    return RankBreakdown(
        rank=rank,
        host=host or f"node{rank + 1}",
        steps=30,
        step_ms=50.0 + data_ms + comm_ms,
        compute_ms=40.0,
        exposed_comm_ms=comm_ms,
        exposed_copy_ms=None,
        data_wait_ms=data_ms,
        host_ms=10.0,
        comm_ms=comm_ms + 10.0 if comm_ms else 0.0,
        overlap_ratio=10.0 / (comm_ms + 10.0) if comm_ms else None,
        wait_ms=comm_ms,
        transfer_ms=10.0 if comm_ms else 0.0,
    )


def data_loading_finding(**changes: Any) -> Finding:
    finding = Finding(
        kind="data_loading",
        severity="critical",
        cause="rank 1 waits 40 ms a step for its loader",
        ranks=[1],
        nodes=["node2"],
        value=44.4,
        threshold=30.0,
        unit="%",
        evidence={"data_wait_ms": 40.0, "steps": 30, "files": ["rank_1_metrics.jsonl"], "gpu_power_w": None},
        estimated_speedup=Speedup(low=1.125, high=1.5),
        actions=["Raise dataloader.num_workers above 4.", "Put the data on local disk."],
    )
    return msgspec.structs.replace(finding, **changes)


def analysis(**changes: Any) -> Analysis:
    """Two ranks of 90 ms a step: rank 1 loads for 40 ms, and rank 0 waits for it in its collectives."""
    whole = Analysis(
        scenario="2node",
        job_id="102",
        nodes=2,
        world_size=2,
        verdict=Verdict(
            kind="data_loading", statement="Data loading on rank 1 costs 30 ms of each 90 ms step.", ranks=[1]
        ),
        findings=[
            data_loading_finding(),
            SYMPTOM,
        ],
        measured=MEASURED,
        breakdown=BreakdownTable(
            steps=30,
            per_rank=[rank_row(0, data_ms=10.0, comm_ms=30.0), rank_row(1, data_ms=40.0, comm_ms=0.0)],
            timing="host",
        ),
        blame=[Blame(rank=1, cause="data_loading", lost_ms_per_step=30.0)],
        throughput=Throughput(
            samples_per_s=177.8,
            global_batch=16,
            per_rank_batch=8,
            step_ms_median=90.0,
            step_ms_p95=95.0,
            cross_check_ratio=1.0,
            slowest_rank_ms_median=90.0,
            slowest_rank_ms_p95=96.0,
        ),
        utilization=Utilization(
            gpu_util_pct=None,
            effective_gpu_util_pct=None,
            gpu_memory_used_pct=None,
            gpu_power_w=None,
            cpu_pct=80.0,
            job_cpu_pct=150.0,
            host_memory_used_pct=40.0,
            samples=12,
        ),
        data_quality=DataQuality(
            ranks_expected=2,
            ranks_seen=2,
            sources=["step records", "cpu monitor"],
            problems=[],
            nodes_expected=2,
            nodes_seen=2,
            steady_steps=30,
            state="completed",
        ),
        thresholds=THRESHOLDS,
        device="cpu",
        program="aorta.train (ranking)",
        settings={"device": "cpu"},
    )
    return msgspec.structs.replace(whole, **changes)
