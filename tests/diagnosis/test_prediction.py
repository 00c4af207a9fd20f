"""What a finding's speed-up says: what goes, the range, and the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from aorta.artefacts.analysis import Finding, Kind, Speedup
from aorta.artefacts.measured import Interval
from aorta.artefacts.replayed import WhatIf
from aorta.diagnosis.finding import RuleResult, not_measured
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.judge import weigh
from aorta.diagnosis.model import Modelled
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.prediction import predicted, within_noise
from aorta.diagnosis.rank import RankCosts
from aorta.diagnosis.symptoms import cost_ms
from aorta.metrics.another_run import Repeat
from aorta.metrics.launches import Launches
from aorta.metrics.whatif import Replays
from aorta.units import NS_PER_MS
from tests.diagnosis.test_host_bound import context
from tests.diagnosis.test_memory import QUALITY
from tests.support.exchanges import Records, late_loader, matched
from tests.support.findings import TRACES, changed, measure
from tests.support.steps import step

BOUNDS = Speedup(low=1.05, high=1.2)


def finding(kind: Kind, ranks: Sequence[int] = ()) -> Finding:
    return Finding(
        kind=kind,
        severity="warning",
        cause="",
        ranks=list(ranks),
        nodes=[],
        value=40.0,
        threshold=10.0,
        unit="%",
        evidence={},
        estimated_speedup=BOUNDS,
        actions=[],
    )


def modelled(records: Records, made: Observation | None = None) -> Observation:
    found = Replays.of(matched(records), [item.global_step for item in records[0]])
    assert isinstance(found, Replays)
    return replace(made or context([10.0, 10.0]), model=Modelled(found, None, None, {}))


def gain(item: Finding, made: Observation) -> tuple[Speedup, WhatIf]:
    left, what = predicted(FINDINGS[item.kind], item, made, TRACES)
    assert left.estimated_speedup is not None
    assert what is not None
    return left.estimated_speedup, what


def test_ten_steps_have_the_interval_of_another_run() -> None:
    # Without the loader 65 ms become 20 + 10 + 5 in every step: an interval of no width.
    found, what = gain(finding("data_loading", [1]), modelled(late_loader(transfers=[10] * 10)))
    assert (found.basis, found.limit) == ("replay", None)
    assert found.low == found.expected == found.high == pytest.approx(65 / 35)
    assert what.speedup_interval == Interval(low=found.low, high=found.high)
    assert what.effect_interval is not None


def test_nine_steps_have_none_and_keep_the_bounds_widened_to_what_is_expected() -> None:
    found, what = gain(finding("data_loading", [1]), modelled(late_loader(transfers=[10] * 9)))
    assert (what.speedup_interval, what.step_ms_interval, what.effect_interval) == (None, None, None)
    assert (found.basis, found.low) == ("bounds", BOUNDS.low)
    assert found.expected == found.high == pytest.approx(65 / 35)
    assert within_noise(FINDINGS[what.kind], what, context([10.0, 10.0]), TRACES) is None


def test_where_traces_do_not_tell_what_hosts_need_the_gain_is_at_most_that() -> None:
    records = late_loader(transfers=[10] * 10)
    steps = [item.global_step for item in records[0]]
    made = modelled(records)
    for hosts, expected in (({}, None), ({0: 0.0, 1: 0.0}, 65 / 35)):
        replays = Replays.of(matched(records), steps, hosts)
        assert isinstance(replays, Replays)
        found, what = gain(
            finding("data_loading", [1]), replace(made, model=Modelled(replays, None, None, {}))
        )
        assert found.expected == (pytest.approx(expected) if expected else None)
        assert found.high == what.speedup == pytest.approx(65 / 35)
        assert (found.basis, found.low < 1.01) == (("replay", False) if expected else ("bounds", True))
        assert what.bound is (expected is None)
        assert ("is not known" in what.removed) is what.bound


@pytest.mark.parametrize(("hosts", "high"), [(60.0, 65 / 60), (0.0, 2.5)])
def test_no_bound_lies_beyond_what_the_hosts_need(hosts: float, high: float) -> None:
    """Of 9 steps of 65 ms, without an interval: the cause takes more than the hosts let anybody gain."""
    records = late_loader(transfers=[10] * 9)
    replays = Replays.of(matched(records), range(9), dict.fromkeys(range(2), hosts * NS_PER_MS))
    assert isinstance(replays, Replays)
    made = replace(context([10.0, 10.0]), model=Modelled(replays, None, None, {}))
    item = msgspec.structs.replace(
        finding("data_loading", [1]), estimated_speedup=Speedup(low=1.05, high=2.5)
    )
    found, _ = gain(item, made)
    assert found.low == 1.05
    assert found.high == pytest.approx(high)


@pytest.mark.parametrize(("hosts", "high"), [(33.0, 65 / 33), (0.0, 2.6)])
def test_nor_beyond_the_limit_that_the_hosts_set(hosts: float, high: float) -> None:
    """Without the costlier of two exchanges 65 ms become 35; without both 25, or what the hosts need."""
    records = two_exchanges(9)
    replays = Replays.of(matched(records), range(9), dict.fromkeys(range(2), hosts * NS_PER_MS))
    assert isinstance(replays, Replays)
    made = replace(context([10.0, 10.0]), model=Modelled(replays, None, None, {}))
    item = msgspec.structs.replace(finding("communication"), estimated_speedup=Speedup(low=1.05, high=2.6))
    found, what = gain(item, made)
    assert "next limit" not in what.removed
    assert found.expected == pytest.approx(65 / 35)
    assert found.high == pytest.approx(high)


@pytest.mark.parametrize(("hosts", "kind", "cost"), [(63.0, "host_bound", 10.0), (0.0, "data_loading", 25.0)])
def test_a_cause_costs_no_more_than_a_replay_without_it_gains(hosts: float, kind: Kind, cost: float) -> None:
    """Rank 0 waits 50 of 100 ms for rank 1's loader: with hosts that need 63 of 65, 3 % of the step are
    gained without it, with such that need nothing 46 %.
    """
    records = late_loader(transfers=[10] * 10)
    replays = Replays.of(matched(records), range(10), dict.fromkeys(range(2), hosts * NS_PER_MS))
    assert isinstance(replays, Replays)
    made = context([10.0, 10.0], {0: {(1, "data_loading"): 50.0}})
    made = replace(made, model=Modelled(replays, None, None, {}))
    kinds: list[tuple[Kind, list[int]]] = [("data_loading", [1]), ("host_bound", [])]
    answers = {
        of: RuleResult(not_measured(of, 10.0, "%", "").measured, finding(of, ranks)) for of, ranks in kinds
    }
    found = weigh(answers, replace(made, quality=QUALITY), TRACES)
    assert found.verdict.kind == kind
    assert found.findings[0].lost_ms_per_step == pytest.approx(cost)
    assert found.findings[1].lost_ms_per_step == pytest.approx(100 * (1 - 63 / 65) if hosts else 10.0)


def test_what_the_replay_misses_of_other_steps_widens_the_range() -> None:
    # Halves 0 1 1 0 1 0 0 1 1 0: one transfer of 16 in half 0, of 65 ms 1.2 more on average; 1.8 % of it.
    transfers = [16, *[10] * 9]
    found, _ = gain(finding("data_loading", [1]), modelled(late_loader(transfers=transfers)))
    assert found.expected is not None
    assert found.low < found.expected / 1.018
    assert found.high > found.expected * 1.018


def test_a_replay_that_misses_other_steps_predicts_nothing() -> None:
    item = finding("data_loading", [1])
    withheld = modelled(late_loader(transfers=[60, *[10] * 9]))
    found, what = predicted(FINDINGS[item.kind], item, withheld, TRACES)
    assert found.estimated_speedup is not None
    assert (found.estimated_speedup.expected, what) == (None, None)
    assert withheld.model is not None
    record = withheld.model.record([])
    assert record is not None
    # Half of the steps 65 + 50 / 5 ms, the others 65.
    assert record.error_pct == pytest.approx(100 * 10 / 65)
    assert record.withheld is not None
    assert record.ideal_network_step_ms is None


@pytest.mark.parametrize(
    ("kind", "transfer_ms", "high"),
    [
        ("straggler", 20.0, 100 / 60),  # 20 of 100 ms by the bounds, and 20 of exchange
        ("data_loading", 20.0, 100 / 60),
        ("straggler", 0.0, 100 / 80),
        ("straggler", 80.0, 100 / 80),  # nothing would be left
        ("communication", 20.0, 100 / 80),
    ],
)
def test_exchanges_that_a_replay_misses_may_go_with_the_ranks_that_are_late(
    kind: Kind, transfer_ms: float, high: float
) -> None:
    costs = [RankCosts(rank, 100.0, 20.0, 0.0, 0.0, 0.0, transfer_ms, {}) for rank in range(2)]
    seen = changed(modelled(late_loader(transfers=[60, *[10] * 9])), costs=costs)
    item = replace(finding(kind, [1]), estimated_speedup=Speedup(low=1.05, high=100 / 80))
    found, _ = predicted(FINDINGS[kind], item, seen, TRACES)
    assert found.estimated_speedup is not None
    assert found.estimated_speedup.high == pytest.approx(high)
    without = predicted(FINDINGS[kind], item, changed(seen, model=None), TRACES)
    assert without == (item, None)


def two_exchanges(steps: int) -> Records:
    """Of 10 and 30 ms after 20 of compute, and 5 of the host: 65 ms a step."""
    return {
        rank: [
            step(
                n,
                (65 * n, 65 * n + 65),
                rank=rank,
                compute=[(65 * n, 65 * n + 20)],
                collectives=[(65 * n + 20, 65 * n + 30), (65 * n + 30, 65 * n + 60)],
            )
            for n in range(steps)
        ]
        for rank in range(2)
    }


def test_the_ideal_network_is_the_limit_and_no_end_of_the_interval() -> None:
    """Without the second exchange 35 ms, without both 25."""
    found, what = gain(finding("communication"), modelled(two_exchanges(10)))
    assert found.expected == found.high == pytest.approx(65 / 35)
    assert found.limit == pytest.approx(65 / 25)
    assert what.speedup == found.expected


def windows(idle_ms: float) -> Observation:
    """Steps of 100 ms with windows of 80, a hidden exchange of 50 posted at 20, and 20 of host work."""
    records = {
        rank: [
            step(
                n,
                (100 * n, 100 * n + 100),
                rank=rank,
                compute=[(100 * n, 100 * n + 20), (100 * n + 20, 100 * n + 80)],
                collectives=[(100 * n + 20, 100 * n + 70)],
            )
            for n in range(10)
        ]
        for rank in range(2)
    }
    launches = Launches(kernels=1000.0, kernels_ms=80.0 - idle_ms, windows_ms=80.0)
    made = changed(context([20.0, 20.0]), launches=launches)
    return modelled(records, made)


def test_windows_without_their_idle_time_still_take_what_they_hid() -> None:
    """Kernels of 20 in 80 ms: a quarter of the windows stays, and the exchange ends after 5 + 50 ms.

    Idle time taken off the step, 100 - 60, would have the exchange end before it could.
    """
    made = windows(60.0)
    _, item = measure("host_bound", made)
    assert item is not None
    assert item.value == pytest.approx(80.0)
    found, what = gain(item, made)
    # The host's 20 ms follow the windows, 20 ms long, and the step ends with the exchange.
    assert what.step_ms == pytest.approx(max(20 + 20, 5 + 50))
    assert "75 % of compute's windows" in what.removed
    assert found.basis == "replay"
    assert found.limit == pytest.approx(100 / 55)
    assert cost_ms(item, made) == pytest.approx(80.0)


def test_windows_that_their_kernels_fill_leave_the_bounds() -> None:
    """A measured zero, and its twin without a measurement: nothing is removed inside of windows."""
    full = windows(0.0)
    _, item = measure("host_bound", full, replace(TRACES, host_pct=10.0))
    assert item is not None
    assert predicted(FINDINGS[item.kind], item, full, TRACES) == (item, None)
    assert predicted(FINDINGS[item.kind], item, changed(full, launches=None), TRACES) == (item, None)


@pytest.mark.parametrize(
    ("kind", "low", "noise"),
    [
        ("data_loading", 1.0, True),
        ("data_loading", 1.01, False),
        ("straggler", 1.1, True),
        ("straggler", 1.12, False),
    ],
)
def test_gains_that_may_be_none_are_noise(kind: Kind, low: float, noise: bool) -> None:
    """By these steps; what another run may give is no reason. Half of the 20 % for waits: 1 / 0.9."""
    what = WhatIf(
        kind=kind,
        removed="",
        ranks=[],
        step_ms=80.0,
        step_ms_interval=Interval(low=50.0, high=120.0),
        speedup=1.25,
        speedup_interval=Interval(low=0.8, high=2.0),
        effect_interval=Interval(low=low, high=1.5),
    )
    made = context([10.0, 10.0])
    policy = replace(TRACES, straggler_pct=20.0)
    assert (within_noise(FINDINGS[what.kind], what, made, policy) is not None) is noise


def ran(*steps_ms: float) -> tuple[Repeat, ...]:
    return tuple(Repeat(step) for step in steps_ms)


@pytest.mark.parametrize(
    ("repeats", "noise"),
    [
        ((80.0, 90.0, 100.0, 110.0), True),
        ((100.0, 101.0, 99.0, 100.0), False),
        ((80.0, 90.0, 110.0), False),
        ((), False),
    ],
)
def test_a_gain_within_what_other_runs_differ_by_is_noise(repeats: tuple[float, ...], noise: bool) -> None:
    """20 % of the step: four runs of 80 to 110 ms vary by 2.63 times 0.137, those of 99 to 101 by 2 %, and
    three, or none, say nothing.
    """
    what = WhatIf(
        kind="data_loading",
        removed="",
        ranks=[],
        step_ms=80.0,
        step_ms_interval=None,
        speedup=1.25,
        speedup_interval=None,
        effect_interval=Interval(low=1.2, high=1.3),
    )
    why = within_noise(
        FINDINGS[what.kind], what, replace(context([10.0, 10.0]), repeats=ran(*repeats)), TRACES
    )
    assert (why is not None) is noise
    if why is not None:
        assert "20 % of the step would be gained, and by 4 other runs of the same program 30 %" in why


def test_a_run_whose_cause_was_taken_away_with_doubt_hides_no_finding() -> None:
    """27 % of the step, as it is in each step; seven other runs, one of 94 ms after most of it was taken."""
    what = WhatIf(
        kind="straggler",
        removed="",
        ranks=[1],
        step_ms=73.0,
        step_ms_interval=None,
        speedup=100 / 73,
        speedup_interval=None,
        effect_interval=Interval(low=1.3, high=1.45),
    )
    near = ran(58.1, 56.6, 56.1, 58.3, 58.7, 56.2)
    for doubt, noise in ((0.23, False), (0.0, True)):
        beside = replace(context([10.0, 10.0]), repeats=(*near, Repeat(94.3, doubt)))
        assert (within_noise(FINDINGS[what.kind], what, beside, TRACES) is not None) is noise


def test_where_other_runs_lie_further_apart_the_interval_is_theirs() -> None:
    """Steps that are all alike have an interval of no width; runs of 99 to 101 ms are 0.8 % apart each."""
    own = modelled(late_loader(transfers=[10] * 10))
    beside = replace(own, repeats=ran(100.0, 101.0, 99.0, 100.0))
    found, what = gain(finding("data_loading", [1]), beside)
    assert found.expected is not None
    assert found.expected == pytest.approx(65 / 35)
    assert what.speedup_interval == Interval(low=found.low, high=found.high)
    assert what.alone_interval == Interval(low=what.speedup, high=what.speedup)
    assert what.step_ms_interval is not None
    # t of three degrees of freedom, and the deviation of the logarithms 0, 0.00995, -0.01005, 0.
    assert found.high / found.expected == pytest.approx(
        math.exp(3.182446 * 0.0081652 * math.sqrt(2)), rel=1e-4
    )
    assert what.step_ms_interval.high / what.step_ms == pytest.approx(found.high / found.expected)
    assert gain(finding("data_loading", [1]), replace(own, repeats=ran(90.0, 101.0, 99.0)))[0].low == 65 / 35
