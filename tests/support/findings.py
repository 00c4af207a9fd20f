"""A run of two ranks and a finding in it, for the rules about causes behind causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any

from aorta.artefacts.analysis import (
    BreakdownTable,
    Finding,
    Kind,
    RankBreakdown,
)
from aorta.config.schema import Config, Dataloader
from aorta.diagnosis.context import Context, Evidence
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import RankCosts
from aorta.diagnosis.subcauses import with_sub_cause
from aorta.metrics.node_load import NodeLoad

IDLE = NodeLoad(50.0, 50.0, 2.0, 0.0)
"""Half of the machine's CPU time, and one of the job's four half CPUs."""


def context(evidence: Evidence | None = None, **changes: Any) -> Context:
    """Two ranks of 100 ms a step: 60 compute, 30 exposed communication, 10 host; 10 ms more are hidden."""
    rows = [
        RankBreakdown(
            rank=rank,
            host=f"node{rank}",
            steps=20,
            step_ms=100.0,
            compute_ms=60.0,
            exposed_comm_ms=30.0,
            exposed_copy_ms=0.0,
            data_wait_ms=0.0,
            host_ms=10.0,
            comm_ms=40.0,
            overlap_ratio=0.25,
        )
        for rank in range(2)
    ]
    made = Context(
        policy=Policy.of(None),
        config=Config(dataloader=Dataloader(num_workers=3)),
        cuda=True,
        world_size=2,
        breakdown=BreakdownTable(steps=20, per_rank=rows),
        costs=[RankCosts(rank, 100.0, 60.0, 0.0, 10.0, 0.0, 30.0, {}) for rank in range(2)],
        blame_absent=None,
        utilization=None,
        allocator=None,
        memory_estimate=None,
        hosts={0: "node0", 1: "node1"},
        cpus_usable=2,
        evidence=evidence or Evidence(),
    )
    return changed(made, **changes)


def finding(kind: Kind, ranks: Sequence[int] = (), **evidence: Any) -> Finding:
    return Finding(
        kind=kind,
        severity="warning",
        cause="",
        ranks=list(ranks),
        nodes=[f"node{rank}" for rank in ranks],
        value=50.0,
        threshold=20.0,
        unit="%",
        evidence=evidence,
        estimated_speedup=None,
        actions=[],
    )


def code(found: Finding, seen: Context) -> str | None:
    return with_sub_cause(found, seen).sub_cause
