"""What a cause costs, in words: what is expected, and what at most."""

from __future__ import annotations

import pytest

from aorta.artefacts.analysis import Speedup
from aorta.report.content import cost_words, step_ms
from tests.support.analyses import analysis, data_loading_finding


@pytest.mark.parametrize(
    ("gained", "words"),
    [
        (
            Speedup(low=2.0, high=4.0, expected=2.0, step_ms=45.0, basis="bounds"),
            "{} shorter (50.0 %), at most {} (75.0 %)",
        ),
        (Speedup(low=2.0, high=2.0, expected=2.0, step_ms=45.0, basis="bounds"), "{} shorter (50.0 %)"),
        (Speedup(low=1.5, high=4.0, expected=2.0, step_ms=45.0, basis="replay"), "{} shorter (50.0 %)"),
        (Speedup(low=2.0, high=2.0), "at most {} shorter (50.0 %)"),
    ],
)
def test_the_cost_is_what_is_expected_and_what_at_most_where_that_is_more(
    gained: Speedup, words: str
) -> None:
    found = analysis(findings=[data_loading_finding(estimated_speedup=gained)])
    whole = step_ms(found)
    assert whole is not None
    said = words.format(f"{whole / 2:.1f} ms", f"{0.75 * whole:.1f} ms")
    assert cost_words(found, found.findings[0]).endswith(f"ms is {said}")
