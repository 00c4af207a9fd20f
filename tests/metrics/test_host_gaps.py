"""Where the host's part of a step lies."""

from __future__ import annotations

import pytest

from aorta.metrics.host_gaps import END, START, host_gaps
from tests.support.steps import step


def test_gaps_are_named_by_what_they_lie_between_and_sum_to_the_hosts_part() -> None:
    records = {
        0: [
            step(0, (0, 100), data=[(2, 10)], compute=[(40, 60), (61, 80)], collectives=[(70, 90)]),
            step(
                1, (100, 200), data=[(102, 110)], compute=[(140, 160), (161, 180)], collectives=[(170, 190)]
            ),
        ]
    }
    found = host_gaps(records)
    assert [(gap.after, gap.before, gap.ms) for gap in found] == [
        ("the loader", "work", 30),
        ("communication", END, 10),
        (START, "the loader", 2),
        ("work", "work", 1),
    ]
    assert found[0].share == pytest.approx(30 / 43)
    breakdown = records[0][0].breakdown
    assert breakdown is not None
    assert sum(gap.ms for gap in found) * 1e6 == pytest.approx(breakdown.host_ns)


def test_steps_without_ranges_and_full_steps_have_none() -> None:
    assert host_gaps({}) == []
    assert host_gaps({0: [step(0, (0, 10), compute=[(0, 10)])]}) == []
