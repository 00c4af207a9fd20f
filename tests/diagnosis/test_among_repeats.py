"""A run beside others of the same thing: what varies between them is no finding of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.analysis import Analysis
from aorta.diagnosis.analyse_run import analyse
from aorta.readers.run import read_run
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import measured

SLOW = {"extra_compute_ms": {1: 30.0}}


def made(results: Path, job: int, others: Sequence[Analysis] = (), **spec: Any) -> Analysis:
    run = write_run(results, RunSpec(job_id=str(job), steps=24, **spec))
    return analyse(read_run(run, query_accounting=False), others=others)


def several(results: Path, *compute_ms: float, **spec: Any) -> list[Analysis]:
    return [made(results, 100 + number, compute_ms=value, **spec) for number, value in enumerate(compute_ms)]


def test_a_slow_rank_stands_where_earlier_runs_agree_and_not_where_they_scatter(tmp_path: Path) -> None:
    alike = several(tmp_path / "alike", 60.0, 61.0, 60.0, 61.0)
    found = made(tmp_path / "alike", 1, alike, **SLOW)
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [1])
    apart = several(tmp_path / "apart", 60.0, 100.0, 60.0, 100.0)
    lost = made(tmp_path / "apart", 1, apart, **SLOW)
    assert lost.verdict.kind == "healthy"
    assert "4 other runs of the same program" in lost.verdict.statement
    answer = measured(lost, "straggler")
    assert not answer.fired
    assert answer.value == measured(found, "straggler").value
    assert answer.reason is not None
    assert "within noise" in answer.reason


@pytest.mark.parametrize("count", [0, 3])
def test_few_repeats_change_nothing(tmp_path: Path, count: int) -> None:
    apart = several(tmp_path, *[60.0, 100.0, 60.0][:count])
    assert made(tmp_path, 1, apart, **SLOW) == made(tmp_path / "alone", 1, **SLOW)


def test_a_fault_that_some_repeats_had_too_is_no_scatter(tmp_path: Path) -> None:
    """Half of the earlier runs had the slow rank: what was found in them is taken from their step time."""
    mixed = [*several(tmp_path, 60.0, 60.0), made(tmp_path, 110, **SLOW), made(tmp_path, 111, **SLOW)]
    assert [item.verdict.kind for item in mixed] == ["healthy", "healthy", "straggler", "straggler"]
    assert made(tmp_path, 1, mixed, **SLOW).verdict.kind == "straggler"


def test_runs_of_another_batch_are_no_repeats(tmp_path: Path) -> None:
    larger = several(tmp_path, 60.0, 100.0, 60.0, 100.0, batch_size=16)
    assert made(tmp_path, 1, larger, **SLOW).verdict.kind == "straggler"
