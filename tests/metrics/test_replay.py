"""Replay, in tiny integer steps and against a simulation in which the cause is really gone."""

from __future__ import annotations

from dataclasses import replace as changed

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.metrics.replay import Removal, replay
from aorta.metrics.replay_model import build, dependent_transfers
from aorta.metrics.whatif import Replays
from aorta.units import NS_PER_MS
from tests.support.exchanges import Records, late_loader, matched, simulated
from tests.support.steps import step
from tests.support.synthetic import RunSpec, simulate


def replays(records: Records) -> Replays:
    found = Replays.of(matched(records), [item.global_step for item in records[0]])
    assert isinstance(found, Replays), found
    return found


def mean_ms(spec: RunSpec) -> float:
    """The true step of the simulation, from the start of the first to the end of the last, over ranks."""
    timeline = simulate(spec)
    return float(np.mean([steps[-1].end for steps in timeline])) / len(timeline[0]) / NS_PER_MS


TWO = late_loader()
"""Rank 0 comes to the exchange at 20 and rank 1 at 50, which loads for 30. Transfer 10, host 5."""


def test_unchanged_the_steps_are_what_they_were() -> None:
    found = replays(TWO)
    assert found.measured_ms == found.modelled_ms == 65.0
    assert found.doubt is None


def test_without_the_late_loader_the_step_is_compute_transfer_and_host() -> None:
    found = replays(TWO).as_the_others(("data_loading",), [1])
    assert found.step_ms == pytest.approx(20 + 10 + 5)
    assert found.speedup == pytest.approx(65 / 35)


@pytest.mark.parametrize(
    ("hosts_ms", "expected"),
    [
        ({}, 35),
        ({0: 0, 1: 0}, 35),
        ({0: 50, 1: 60}, 60),  # rank 1 loads faster, and its host works as before
        ({0: 90, 1: 90}, 65),  # by what is measured otherwise: no step becomes longer
    ],
)
def test_a_step_takes_what_its_hosts_need_for_it(hosts_ms: dict[int, float], expected: float) -> None:
    host_ns = {rank: ms * NS_PER_MS for rank, ms in hosts_ms.items()}
    found = Replays.of(matched(TWO), [item.global_step for item in TWO[0]], host_ns)
    assert isinstance(found, Replays)
    assert found.as_the_others(("data_loading",), [1]).step_ms == pytest.approx(expected)
    assert found.without({"data_loading": 1.0}).step_ms == pytest.approx(expected)
    assert found.modelled_ms == 65.0


@pytest.mark.parametrize(
    ("hosts_ms", "bound"),
    [
        (None, False),  # no traces: the host's part is measured like the others
        ({}, True),
        ({1: 60.0}, True),  # of the rank that stays as it is, nothing is known
        ({0: 0.0}, False),
        ({0: 0.0, 1: 60.0}, False),
    ],
)
def test_hosts_that_traces_do_not_tell_of_may_be_the_next_limit(
    hosts_ms: dict[int, float] | None, bound: bool
) -> None:
    host_ns = None if hosts_ms is None else {rank: ms * NS_PER_MS for rank, ms in hosts_ms.items()}
    found = Replays.of(matched(TWO), [item.global_step for item in TWO[0]], host_ns)
    assert isinstance(found, Replays)
    without = found.as_the_others(("compute", "host"), [1])
    assert (without.bound, without.step_ms) == (bound, found.modelled_ms)  # rank 1 is late by its loader
    assert not found.without({"host": 1.0}).bound  # who takes host work away does not wait for it


def test_of_a_late_host_the_others_hosts_are_the_next_limit() -> None:
    """Rank 1 comes to the exchange at 60 and rank 0 at 10, behind whose GPU's wait its host works for 40."""
    records = {
        rank: [
            step(
                n,
                (75 * n, 75 * n + 75),
                rank=rank,
                compute=[(75 * n, 75 * n + 10)],
                collectives=[(75 * n + (60 if rank else 10), 75 * n + 75)],
            )
            for n in range(4)
        ]
        for rank in range(2)
    }
    left = {}
    for own in (0.0, 40.0):
        found = Replays.of(matched(records), range(4), {0: own * NS_PER_MS, 1: 60.0 * NS_PER_MS})
        assert isinstance(found, Replays)
        without = found.as_the_others(("compute", "host"), [1])
        left[own] = without.step_ms
        assert without.hosts_ms == (own or None)
        assert found.without_transfer().step_ms == pytest.approx(60)
    assert left == {0.0: pytest.approx(10 + 15), 40.0: pytest.approx(40)}


def test_hosts_bound_no_step_beyond_what_it_took() -> None:
    """Steps of 20 and of 200 by turns: what hosts need on average, 108, is not what the short ones took."""
    ends = [20, 220, 240, 440]
    records = {
        rank: [
            step(
                n,
                (end - (200 if n % 2 else 20), end),
                rank=rank,
                compute=[(end - (200 if n % 2 else 20), end - 5)],
                collectives=[(end - 5, end)],
            )
            for n, end in enumerate(ends)
        ]
        for rank in range(2)
    }
    found = Replays.of(matched(records), range(4), dict.fromkeys(range(2), 108.0 * NS_PER_MS))
    assert isinstance(found, Replays)
    assert found.without_transfer().step_ms == pytest.approx((20 + 195) / 2)


def test_taken_away_together_hosts_that_only_load_faster_work_as_before() -> None:
    host_ns = {0: 0.0, 1: 60.0 * NS_PER_MS}
    found = Replays.of(matched(TWO), [item.global_step for item in TWO[0]], host_ns)
    assert isinstance(found, Replays)
    assert found.together(("data_loading",), [1], [0]).step_ms == pytest.approx(60)
    assert found.together(("compute", "host"), [0], [1]).step_ms == pytest.approx(60)


def test_an_ideal_network_leaves_the_wait_for_the_late_rank() -> None:
    assert replays(TWO).without_transfer().step_ms == pytest.approx(50 + 5)
    assert replays(TWO).ideal_ratio() == pytest.approx(55 / 65)


def test_the_next_slowest_rank_limits_what_removing_the_slowest_gains() -> None:
    spec = RunSpec(ranks_per_node=3, steps=12, extra_compute_ms={1: 100.0, 2: 50.0})
    found = replays(simulated(spec))
    assert found.as_the_others(("compute",), [1]).step_ms == pytest.approx(
        mean_ms(changed(spec, extra_compute_ms={1: 25.0, 2: 50.0})), rel=0.01
    )


def test_hidden_communication_becomes_exposed_where_less_is_left_to_hide_it() -> None:
    records = {
        rank: [
            step(
                n,
                (100 * n, 100 * n + 100),
                rank=rank,
                compute=[(100 * n, 100 * n + 10), (100 * n + 10, 100 * n + 100)],
                collectives=[(100 * n + 10, 100 * n + 60)],
            )
            for n in range(4)
        ]
        for rank in range(2)
    }
    # Posted at 10, 50 long, needed by the end of the step: half of all compute gone, it ends at 5 + 50.
    assert replays(records).without({"compute": 0.5}).step_ms == pytest.approx(55)


def test_a_call_that_did_not_depend_on_the_last_member_is_not_held_by_it() -> None:
    records = {
        0: [step(0, (0, 40), compute=[(0, 10), (20, 35)], collectives=[(10, 20)])],
        1: [step(0, (0, 80), rank=1, compute=[(0, 50)], collectives=[(50, 60)])],
    }
    found = build(matched(records), [0])[0]
    assert replay(found).end.tolist() == [[40 * NS_PER_MS], [80 * NS_PER_MS]]


def test_runs_with_a_gap_between_them_are_replayed_apart() -> None:
    kept = {rank: [steps[0], steps[2]] for rank, steps in TWO.items()}
    found = Replays.of(matched(kept), [0, 2])
    assert isinstance(found, Replays)
    assert found.runs == [(0, 1), (1, 2)]
    assert found.measured_ms == 65.0


def test_steps_without_ranges_are_told() -> None:
    found = Replays.of(matched(TWO), [0, 1, 2, 3])
    assert found == "2 ranks did not record what they did in every step"


def test_the_costliest_collective_of_a_step() -> None:
    spec = RunSpec(ranks_per_node=2, steps=12, hidden_comm_ms=10.0, exposed_comm_ms=30.0)
    found = replays(simulated(spec)).costliest_place()
    assert found is not None
    place, prediction = found
    assert place.number == 1
    assert place.transfer_ms == pytest.approx(30)
    assert prediction.step_ms == pytest.approx(mean_ms(changed(spec, exposed_comm_ms=0.0)), rel=0.01)


def test_too_few_steps_have_no_interval_and_many_have_one_around_the_prediction() -> None:
    few = replays(TWO).as_the_others(("data_loading",), [1])
    assert (few.step_ms_interval, few.speedup_interval, few.effect_interval) == (None, None, None)
    spec = RunSpec(ranks_per_node=3, steps=40, jitter_ms=20, extra_data_ms={1: 60.0})
    many = replays(simulated(spec)).as_the_others(("data_loading",), [1])
    assert many.speedup_interval is not None
    assert many.effect_interval is not None
    for interval in (many.speedup_interval, many.effect_interval):
        assert interval.low < many.speedup < interval.high
        assert interval.confidence == 0.95
    # What another run gives is less certain than what these steps do.
    assert many.speedup_interval.low < many.effect_interval.low
    assert many.effect_interval.high < many.speedup_interval.high


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(2, 5),
    seed=st.integers(0, 10_000),
    late=st.integers(0, 4),
    extra=st.integers(10, 120),
    kind=st.sampled_from(("data", "compute", "host")),
    jitter=st.integers(0, 20),
)
def test_predictions_are_what_the_simulation_gives_without_the_cause(
    ranks: int, seed: int, late: int, extra: int, kind: str, jitter: int
) -> None:
    spec = RunSpec(ranks_per_node=ranks, steps=20, jitter_ms=jitter, seed=seed)
    faulty = changed(spec, **{f"extra_{kind}_ms": {late % ranks: float(extra)}})  # type: ignore[arg-type]
    found = replays(simulated(faulty))
    assert found.modelled_ms == pytest.approx(found.measured_ms, rel=0.001)
    parts = ("data_loading",) if kind == "data" else ("compute", "host")
    predicted = found.as_the_others(parts, [late % ranks])  # type: ignore[arg-type]
    assert predicted.step_ms == pytest.approx(mean_ms(spec), rel=0.06)


def test_shares_of_one_call_site_apply_to_it_alone() -> None:
    spec = RunSpec(ranks_per_node=2, steps=12, hidden_comm_ms=10.0, exposed_comm_ms=30.0)
    model = build(matched(simulated(spec)), range(12))[0]
    found = replay(model, Removal(transfer=np.array([0.0, 1.0]))).step_ns().mean()
    assert found == pytest.approx(replay(model).step_ns().mean())


def test_a_long_call_that_ends_just_before_its_partner_starts_waited_for_it() -> None:
    """Clocks differ by less than 5 % of what the call took; a short call before it did not wait."""
    after_last = np.array([-50, -51, 30, -50, 0])
    alone = np.array([1000, 1000, 1000, 60, 0])
    assert dependent_transfers(after_last, alone).tolist() == [0, -51, 30, -50, 0]
