"""What `benchmarks/scale_traces.py` writes is a run with summaries that the analysis uses."""

from __future__ import annotations

import json

import msgspec
import pytest

from aorta.artefacts.layout import RunDir
from aorta.artefacts.reduction import Reduction
from aorta.commands._analysis import analyze_run
from benchmarks.scale_traces import Content, check, write_run

SMALL = Content(kernels=400, calls=60, names=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, int]:
    return write_run(tmp_path_factory.mktemp("results"), nodes=3, per_node=2, steps=20, content=SMALL)


def test_the_analysis_is_of_the_summaries_and_names_the_slow_rank(made: tuple[RunDir, int]) -> None:
    run, slow = made
    assert slow == 2
    analysis = analyze_run(run, query_accounting=False).analysis
    check(json.loads(msgspec.json.encode(analysis)), ranks=6)
    # Ten of twenty steps are the warm-up, and the last one has none behind it.
    assert analysis.breakdown.steps == 9
    rows = {row.rank: row for row in analysis.breakdown.per_rank}
    # 500 ms more in 1000, less the gaps between kernels.
    assert rows[slow].compute_ms - rows[0].compute_ms == pytest.approx(500, abs=30)
    assert analysis.traces is not None
    assert all(len(row.kernels) == 5 + 1 for row in analysis.traces.per_rank)


def test_what_is_wrong_with_an_analysis_is_said(made: tuple[RunDir, int]) -> None:
    run, _ = made
    analysis = analyze_run(run, query_accounting=False).analysis
    found = json.loads(msgspec.json.encode(analysis))
    for key, value in (("verdict", {"kind": "straggler", "ranks": [1]}), ("traces", None)):
        with pytest.raises(SystemExit, match="expected"):
            check(found | {key: value}, ranks=6)


def test_each_node_says_which_ranks_it_reduced(made: tuple[RunDir, int]) -> None:
    run, _ = made
    for index, node in run.nodes():
        assert sorted(node.trace_summaries()) == [2 * index, 2 * index + 1]
        done = msgspec.json.decode(node.reduction.read_bytes(), type=Reduction)
        assert (done.node_index, done.ranks, done.problems) == (index, [2 * index, 2 * index + 1], [])
