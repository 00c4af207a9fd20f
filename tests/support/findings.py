"""A run of two ranks and a finding in it, for the rules about findings and the causes behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from aorta.artefacts.analysis import Finding, Kind
from aorta.artefacts.measured import BreakdownTable, RankBreakdown
from aorta.config.schema import Config, DataloaderConfig
from aorta.diagnosis.finding import RuleResult
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.observation import Observation, ObservedJob, ObservedSteps
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import RankCosts
from aorta.diagnosis.symptoms import with_sub_cause
from aorta.metrics.node_load import NodeLoad

RECORDS = Policy.of()
TRACES = Policy.of(traced=True)
IDLE = NodeLoad(50.0, 50.0, 2.0, 0.0)
"""Half of the machine's CPU time, and one of the job's four half CPUs."""


def changed(seen: Observation, **values: Any) -> Observation:
    """The observation with fields of its parts changed, by their names: no two parts share one."""
    for name, value in values.items():
        if name in seen.__slots__:
            seen = replace(seen, **{name: value})
            continue
        parts = ("job", "steps", "host", "monitored", "around")
        (part,) = (part for part in parts if name in getattr(seen, part).__slots__)
        seen = replace(seen, **{part: replace(getattr(seen, part), **{name: value})})
    return seen


def measure(kind: Kind, seen: Observation, policy: Policy = TRACES) -> RuleResult:
    return FINDINGS[kind].measure(seen, policy)


def context(**changes: Any) -> Observation:
    """Two ranks of 100 ms per step: 60 compute, 30 exposed communication, 10 host; 10 ms more are hidden."""
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
    made = Observation(
        job=ObservedJob(
            config=Config(dataloader=DataloaderConfig(num_workers=3)),
            cuda=True,
            world_size=2,
            hosts={0: "node0", 1: "node1"},
            cpus_usable=2,
        ),
        steps=ObservedSteps(
            breakdown=BreakdownTable(steps=20, per_rank=rows),
            costs=[RankCosts(rank, 100.0, 60.0, 0.0, 10.0, 0.0, 30.0, {}) for rank in range(2)],
        ),
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


def caused(found: Finding, seen: Observation) -> Finding:
    """The finding with the cause behind it."""
    return with_sub_cause(found, seen, RECORDS)


def code(found: Finding, seen: Observation) -> str | None:
    return caused(found, seen).sub_cause
