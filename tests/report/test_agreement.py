"""Headline, picture, table and JSON of an analysis never contradict each other."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis, Verdict
from aorta.artefacts.io import read_json
from aorta.artefacts.measured import BreakdownTable
from aorta.commands._analysis import analyze_run
from tests.support.agreement import contradictions
from tests.support.analyses import analysis, rank_row
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job

EXAMPLES = sorted(Path("docs/examples").glob("*/BOTTLENECK_ANALYSIS.json"))


def analysed(spec: RunSpec, job: Job | None = None) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), spec)
        if job is not None:
            write_job(run.torch_profiler, job)
        return analyze_run(run, query_accounting=False).analysis


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_kept_reports_agree_with_themselves(path: Path) -> None:
    for scenario in read_json(path, Aggregate).scenarios:
        assert contradictions(scenario) == []


late = st.dictionaries(st.integers(0, 3), st.sampled_from([2.0, 20.0, 90.0]), max_size=2)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    nodes=st.integers(1, 2),
    each=st.integers(1, 2),
    steps=st.sampled_from([1, 11, 30]),
    loader=late,
    compute=late,
    host=late,
    exposed=st.sampled_from([0.0, 6.0, 80.0]),
    detail=st.sampled_from([None, (3, 10), (0, 10)]),
    state=st.sampled_from(["completed", "failed"]),
)
@example(
    nodes=1, each=2, steps=30, loader={}, compute={}, host={0: 90.0}, exposed=0.0, detail=None, state="failed"
)
def test_no_run_is_told_in_two_ways(
    nodes: int,
    each: int,
    steps: int,
    loader: Any,
    compute: Any,
    host: Any,
    exposed: float,
    detail: Any,
    state: str,
) -> None:
    ranks = range(nodes * each)
    mine = [{rank: ms for rank, ms in part.items() if rank in ranks} for part in (loader, compute, host)]
    spec = RunSpec(
        nodes=nodes,
        ranks_per_node=each,
        steps=steps,
        extra_data_ms=mine[0],
        extra_compute_ms=mine[1],
        extra_host_ms=mine[2],
        exposed_comm_ms=exposed,
        detail=detail,
        jitter_ms=1.0,
        state=state,
    )
    assert contradictions(analysed(spec)) == []


@pytest.mark.parametrize(
    "ranks",
    [
        {0: Rank(), 1: Rank()},
        {0: Rank(), 1: Rank(compute=1600)},
        {0: Rank(host=900), 1: Rank(host=900)},
        {0: Rank(loader=2000), 1: Rank()},
        {0: Rank(host=2000), 1: Rank()},
        {0: Rank()},
    ],
    ids=["equal", "compute", "hosts", "loader", "host", "one rank"],
)
def test_no_traced_run_is_told_in_two_ways(ranks: dict[int, Rank]) -> None:
    spec = RunSpec(nodes=1, ranks_per_node=len(ranks), device="cuda:0")
    assert contradictions(analysed(spec, Job(ranks))) == []


def test_contradictions_are_found() -> None:
    whole = analysis()
    assert contradictions(whole) == []
    verdict = whole.verdict
    wrong = {
        "the headline has a step of 80 ms": replace(
            whole, verdict=replace(verdict, statement="Rank 1 costs 30 ms of each 80 ms step.")
        ),
        "the headline does not name rank 1": replace(
            whole, verdict=replace(verdict, statement="Data loading is slow.")
        ),
        "its finding of ranks [1]": replace(whole, verdict=replace(verdict, ranks=[0])),
        "no finding is the verdict straggler": replace(whole, verdict=replace(verdict, kind="straggler")),
        "healthy, with findings": replace(
            whole, verdict=Verdict(kind="healthy", statement="All is well.", ranks=[])
        ),
        "its step is 100": replace(
            whole, breakdown=BreakdownTable(steps=1, per_rank=[replace(rank_row(0), step_ms=100.0)])
        ),
        "not measured beyond its threshold": replace(
            whole, measured=[replace(rule, fired=False) for rule in whole.measured]
        ),
    }
    for words, one in wrong.items():
        assert any(words in found for found in contradictions(one)), (words, contradictions(one))
