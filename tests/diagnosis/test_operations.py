"""Verdicts from nothing but a timeline of operations, one per cause that a pipeline can have."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from aorta.diagnosis.analyse_operations import analyse_operations
from aorta.readers.operations import read_operations
from tests.support.pipelines import as_csv, pipeline

MS = 1_000_000


@pytest.mark.parametrize("link", [0, 1, 2])
def test_a_slow_link_is_the_verdict(tmp_path: Path, link: int) -> None:
    rows = pipeline(
        "1f1b", 4, 8, lambda *_: 10 * MS, steps=4, replicas=2,
        transfer=lambda number: (40 if number == link else 1) * MS,
    )  # fmt: skip
    path = tmp_path / "operations.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    found = analyse_operations(read_operations(path), "operations.csv")
    assert found.verdict.kind == "communication"
    first = found.findings[0]
    assert (first.evidence["mesh_cause"], first.evidence["stages"]) == ("slow_link", [link, link + 1])


@pytest.mark.parametrize(("slow", "said"), [(0, "Stage 0 of 4"), (3, "The step takes")])
def test_s_is_said_only_where_it_is_over_1(tmp_path: Path, slow: int, said: str) -> None:
    rows = pipeline("1f1b", 4, 4, lambda _, stage, __: (16 if stage == slow else 10) * MS, steps=4)
    path = tmp_path / "operations.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    found = analyse_operations(read_operations(path), "operations.csv")
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [slow])
    assert found.slowdown is not None
    assert found.verdict.statement.startswith(said)
    assert (found.slowdown.value < 1) is (slow == 0)


@pytest.mark.parametrize(
    ("stages", "said"), [(4, []), (8, ["operations.csv: the timeline contains 4 of 8 stages"])]
)
def test_stages_that_the_file_lacks_are_named(tmp_path: Path, stages: int, said: list[str]) -> None:
    path = tmp_path / "operations.csv"
    path.write_text(as_csv(pipeline("1f1b", 4, 4, lambda *_: 10 * MS, steps=4)), encoding="utf-8")
    job = read_operations(path)
    job = replace(job, sizes=replace(job.sizes, pipeline=stages))
    problems = analyse_operations(job, "operations.csv").data_quality.problems
    assert [f"{item.file}: {item.reason.split(':')[0]}" for item in problems] == said


def test_a_timeline_without_a_cause_says_what_it_does_not_show(tmp_path: Path) -> None:
    """Communication stands in the timeline, so it is not what lacks."""
    path = tmp_path / "operations.csv"
    path.write_text(as_csv(pipeline("1f1b", 2, 8, lambda *_: 10 * MS, steps=12)), encoding="utf-8")
    found = analyse_operations(read_operations(path), "operations.csv")
    said = [item.reason or "" for item in found.measured] + [item.what for item in found.missing]
    assert not any("communication was not observed" in text for text in said)
    assert any("what the workers do between operations" in text for text in said)
