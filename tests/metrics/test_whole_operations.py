"""The part of a timeline that can be replayed: cut steps and replicas without all ranks are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.diagnosis.analyse_operations import analyse_operations
from aorta.metrics.whole_operations import whole_part
from aorta.readers.operations import read_operations
from tests.support.pipelines import Row, as_csv, pipeline

MS = 1_000_000
SLOW_STAGE = 2
ROWS = pipeline(
    "1f1b", 4, 8, lambda _, stage, __: (10 if stage == SLOW_STAGE else 4) * MS, replicas=2, steps=4
)


def job(folder: Path, rows: list[Row]):
    path = folder / "o.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    return read_operations(path)


def test_a_whole_timeline_stays_as_it_is(tmp_path: Path) -> None:
    given = job(tmp_path, ROWS)
    made, ranks = whole_part(given)
    assert (made is given, ranks) == (True, 8)


@pytest.mark.parametrize("step", [0, 3])
def test_the_first_or_last_step_that_is_cut_is_left_out(tmp_path: Path, step: int) -> None:
    middle = step * 10**9 + 60 * MS
    cut = [row for row in ROWS if row["step"] != step or (int(row["start_ns"]) > middle) is (step == 0)]
    made, _ = whole_part(job(tmp_path, cut))
    assert sorted(set(made.step.tolist())) == [one for one in range(4) if one != step]
    assert made.said == (f"step {step} is cut off and left out",)
    assert len(made) == len(ROWS) * 3 // 4


def test_a_replica_without_all_its_ranks_is_not_judged(tmp_path: Path) -> None:
    few = [row for row in ROWS if row["rank"] != 5]
    made, ranks = whole_part(job(tmp_path, few))
    assert (sorted(set(made.rank.tolist())), ranks) == ([0, 1, 2, 3], 8)
    assert made.said == ("replica 1 (ranks 4, 6, 7) lacks a rank of stage 1 and is not judged",)
    found = analyse_operations(job(tmp_path, few), "o.csv")
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [SLOW_STAGE])
    assert (found.data_quality.ranks_expected, found.data_quality.ranks_seen) == (8, 4)


def test_nothing_is_healthy_where_ranks_are_missing(tmp_path: Path) -> None:
    even = pipeline("1f1b", 4, 8, lambda *_: 4 * MS, replicas=2, steps=4)
    found = analyse_operations(job(tmp_path, [row for row in even if row["rank"] != 5]), "o.csv")
    assert found.verdict.kind == "insufficient_data"
