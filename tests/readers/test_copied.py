"""Copies of a trace beside it cost nothing; two traces that say they are one rank still do."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from tests.support.traced import Job, Rank, write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_job(tmp_path, Job({rank: Rank(compute=3000 if rank == 1 else 2000) for rank in range(3)}, steps=8))
    return tmp_path


def said(found: Analysis) -> tuple[str, list[int]]:
    return found.verdict.kind, found.verdict.ranks


def files(job: Path) -> list[Path]:
    return sorted(job.glob("*.json"))


def test_packed_and_cut_off_copies_are_left_out_and_named(job: Path) -> None:
    first, second, third = files(job)
    (job / "z0.json.gz").write_bytes(gzip.compress(first.read_bytes()))
    (job / "old").mkdir()
    shutil.copy(second, job / "old" / "a.json")
    (job / "z2.json").write_bytes(third.read_bytes()[:-2000])
    found = analyze_traces([job])
    assert said(found) == ("straggler", [1])
    copies = [item for item in found.data_quality.problems if "a copy of" in item.reason]
    assert len(copies) == 3
    (cut,) = (item for item in copies if item.file is not None and item.file.endswith("z2.json"))
    assert f"a copy of {third}" in cut.reason


def test_another_capture_that_says_it_is_the_same_rank_is_still_refused(job: Path) -> None:
    first = files(job)[0]
    document = json.loads(first.read_text())
    document["traceEvents"][-1]["dur"] += 1.0
    (job / "z0.json").write_text(json.dumps(document))
    found = analyze_traces([job])
    assert found.verdict.kind == "insufficient_data"
    assert sum("several traces claim to be rank 0" in p.reason for p in found.data_quality.problems) == 2


def test_a_file_of_a_folder_with_the_name_of_a_trace_is_named_where_it_is_none(job: Path) -> None:
    (job / "rank7.pt.trace.json.gz").write_bytes(b"\x07" * 300)
    (job / "notes.txt").write_text("hello")
    reasons = [item.reason for item in analyze_traces([job]).data_quality.problems]
    assert len(reasons) == 1
    assert "rank7.pt.trace.json.gz: not used" in reasons[0]
