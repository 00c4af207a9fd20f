"""What a cause costs, in words: what is expected, and what at most."""

from __future__ import annotations

import pytest

from aorta.artefacts.analysis import Speedup
from aorta.report.content import cost_words, step_ms
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
            "about 45.0 of 90.0 ms per step (50 %)",
        ),
        (Speedup(low=2.0, high=2.0), "up to 45.0 of 90.0 ms per step (50 %)"),
        (None, "not predicted: the measurements give no bound"),
    ],
)
def test_the_cost_is_what_is_certain_and_the_bound_where_that_is_more(
    gained: Speedup | None, said: str
) -> None:
    found = analysis(findings=[data_loading_finding(estimated_speedup=gained)])
    assert step_ms(found) == 90.0
    assert cost_words(found, found.findings[0]) == said
