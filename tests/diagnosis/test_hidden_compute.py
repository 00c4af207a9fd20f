"""A rank whose kernels take longer in every step is named, though the other ranks' hosts hide most of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from aorta.artefacts.replayed import Lateness, LatenessTable
from aorta.artefacts.weight import Estimate, ProfilerWeight
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.judge import judge
from aorta.diagnosis.model import Modelled
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.rank import RankCosts
from aorta.metrics.charges import Charge
from tests.support.findings import TRACES, changed, context, measure

STEP, OWN, LONGER = 100.0, 20.0, 70.0
"""The step, what rank 0 computes, and what rank 1 computes: rank 0 waits for the difference."""
HOST = 95.0
"""The host's work: 5 ms of the step are free of it."""
WAIT = LONGER - OWN


def late(share: float) -> Modelled:
    rows = [
        Lateness(
            rank=1,
            pattern="persistent",
            late_steps=20,
            share_of_steps=share,
            since_step=0,
            late_ms=WAIT,
            host=None,
        )
    ]
    table = LatenessTable(steps=20, threshold_ms=10.0, ranks=rows, nodes=[], scope="rank")
    return Modelled(None, "no replay", table, {})


def pair(
    computes: float = LONGER,
    cause: Any = "compute",
    *,
    host: float = HOST,
    share: float = 1.0,
    traced: bool = True,
    low: float | None = None,
) -> Observation:
    """Rank 0 waits `WAIT` for rank 1, by its `cause`; both hosts work `host` ms per step."""
    charges: dict[Charge, float] = {(1, cause): WAIT}
    costs = [
        RankCosts(0, STEP, OWN, 0.0, STEP - OWN - WAIT, 0.0, WAIT, charges, host),
        RankCosts(1, STEP, computes, 0.0, STEP - computes, 0.0, 0.0, {}, host),
    ]
    seen = changed(context(), costs=costs, traced=traced, model=late(share))
    if low is None:
        return seen
    without = Estimate(value=STEP, low=low, high=STEP)
    weight = ProfilerWeight(step_ms=150.0, step_ms_without=without, basis="trace")
    return replace(seen, facts=structs.replace(seen.facts, profiler_weight=weight))


def test_the_rank_is_named_with_the_gain_that_the_hosts_leave() -> None:
    found = measure("straggler", pair(low=80.0)).finding
    assert found is not None
    assert found.ranks == [1]
    assert found.value == pytest.approx(100 * WAIT / STEP)
    assert found.evidence["computes_longer_ms"] == pytest.approx(LONGER - OWN)
    speedup = found.estimated_speedup
    assert speedup is not None
    # 5 ms are free of rank 0's host; its work is known to a fifth, so that 19 ms more may be free.
    assert speedup.low == pytest.approx(STEP / (STEP - (STEP - HOST)))
    assert speedup.high == pytest.approx(STEP / (STEP - (STEP - HOST + HOST * 0.2)))


def test_without_an_estimate_of_the_hosts_all_of_the_kernels_may_be_gained() -> None:
    found = measure("straggler", pair()).finding
    assert found is not None
    assert found.estimated_speedup is not None
    assert found.estimated_speedup.high == pytest.approx(STEP / (STEP - WAIT))


@pytest.mark.parametrize(
    "changes",
    [
        {"computes": OWN},  # measured and equal: the last rank is only the one whose GPU shows the hosts
        {"computes": OWN + 5.0},  # longer by 5 % of the step, and 10 are the threshold
        {"cause": "host"},
        {"share": 0.5},  # late in half of the steps
        {"traced": False},  # windows hold the gaps between kernels
    ],
)
def test_hosts_that_are_equally_slow_blame_nobody(changes: dict[str, Any]) -> None:
    answer = measure("straggler", pair(**changes))
    assert answer.finding is None
    assert answer.measured.answer == "not_found"
    assert "the waiting ranks' own host work takes as long" in (answer.measured.reason or "")


def test_a_rank_whose_waits_no_host_hides_is_found_as_before() -> None:
    found = measure("straggler", pair(host=0.0)).finding
    assert found is not None
    assert found.ranks == [1]
    assert "computes_longer_ms" not in found.evidence


def test_the_finding_says_what_hides_it() -> None:
    seen = pair(low=80.0)
    finding = next(one for one in judge(seen, TRACES).findings if one.kind == "straggler")
    assert any("shorten host work" in action for action in finding.actions)
    said = FINDINGS["straggler"].statement(finding, seen)
    assert said.startswith(
        f"Rank 1 computes for {LONGER - OWN:.1f} ms longer in every step, and rank 0 waits."
    )
