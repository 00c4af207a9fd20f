"""What a cause costs, in words: what is expected, and what at most."""

from __future__ import annotations

import msgspec
import pytest

from aorta.artefacts.analysis import Speedup
from aorta.report.content import cost_words, heading, headings, step_ms, unmeasured_words, utilization_rows
from tests.support.analyses import analysis, data_loading_finding


@pytest.mark.parametrize(
    ("gained", "said"),
    [
        # The step is 90 ms: without the cause 45 ms (2×), 22.5 ms (4×).
        (
            Speedup(low=2.0, high=4.0, expected=2.0, step_ms=45.0, basis="bounds"),
            "45.0 to 67.5 of 90.0 ms per step (50 to 75 %)",
        ),
        (
            Speedup(low=2.0, high=2.0, expected=2.0, step_ms=45.0, basis="bounds"),
            "45.0 of 90.0 ms per step (50 %)",
        ),
        (
            Speedup(low=1.5, high=4.0, expected=2.0, step_ms=45.0, basis="replay"),
            "45.0 of 90.0 ms per step (50 %)",
        ),
        (Speedup(low=2.0, high=2.0), "up to 45.0 of 90.0 ms per step (50 %)"),
        (None, "not predicted: the measurements give no limit"),
    ],
)
def test_the_cost_is_what_is_certain_and_the_bound_where_that_is_more(
    gained: Speedup | None, said: str
) -> None:
    found = analysis(findings=[data_loading_finding(estimated_speedup=gained)])
    assert step_ms(found) == 90.0
    assert cost_words(found, found.findings[0]) == said


def test_the_heading_says_when_and_where_a_run_ran() -> None:
    at = 1_764_400_560_000_000_000  # 2025-11-29 07:16 UTC
    line = heading(analysis(started_wall_ns=at))
    assert (
        line
        == "scenario 2node · job 102 · 2 nodes, 2 ranks, CPU only · 2025-11-29 07:16 UTC · hosts node1, node2"
    )
    assert "UTC" not in heading(analysis())
    later = analysis(started_wall_ns=at + 3_600_000_000_000)
    assert headings([analysis(started_wall_ns=at)]) == line
    assert headings([later, analysis(started_wall_ns=at)]) == (
        "2 scenarios · 2025-11-29 07:16 UTC to 2025-11-29 08:16 UTC"
    )
    assert headings([analysis(), later]) == "2 scenarios · 2025-11-29 08:16 UTC"
    assert headings([analysis(), analysis()]) == "2 scenarios"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.0, "1.00 (consistent; should be 0.9 to 1.1)"),
        (1.25, "1.25 (not consistent; should be 0.9 to 1.1)"),
        (0.5, "0.500 (not consistent; should be 0.9 to 1.1)"),
        (None, "—"),
    ],
)
def test_the_check_of_the_throughput_says_its_answer(ratio: float | None, said: str) -> None:
    run = msgspec.structs.replace(analysis().throughput, cross_check_ratio=ratio)
    rows = dict(utilization_rows(analysis(throughput=run)))
    assert next(value for name, value in rows.items() if name.startswith("consistency check")) == said


@pytest.mark.parametrize(
    ("share", "memory", "reason"),
    [
        (None, 9.0, "the job has no cgroup with a memory limit"),
        (None, None, "there are no monitor samples"),
        (0.0, 9.0, None),
    ],
)
def test_an_absent_share_of_the_job_s_memory_has_the_reason_that_applies(
    share: float | None, memory: float | None, reason: str | None
) -> None:
    used = analysis().utilization
    assert used is not None
    used = msgspec.structs.replace(used, job_memory_used_pct=share, host_memory_used_pct=memory)
    words = [
        part for part in unmeasured_words(analysis(utilization=used)).split(". ") if "job memory" in part
    ]
    assert [part.partition(", because ")[2].partition(":")[0] for part in words] == (
        [reason] if reason else []
    )
