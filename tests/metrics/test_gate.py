"""The sequential test of the gate: exact cases, and how often it is right on known noise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.gate import GatePlan, SequentialTest


def decided(slowdown: float, noise: float, seed: int, plan: GatePlan | None = None) -> SequentialTest:
    """A gate whose runs take 1 s, with noise, bursts that double one run in 20, and a drift of 30 %."""
    chance, gate, moment = random.Random(seed), SequentialTest(plan or GatePlan()), 0
    while not gate.decided:
        times: dict[str, list[float]] = {"A": [], "B": []}
        for side in gate.order():
            moment += 1
            drift = 1.0 + 0.15 * math.sin(moment / 40.0)
            burst = 2.0 if chance.random() < 0.05 else 1.0
            value = drift * burst * math.exp(chance.gauss(0.0, noise))
            times[side].append(value * (1.0 + slowdown if side == "B" else 1.0))
        gate.add(times["A"], times["B"])
    return gate


def test_each_side_is_as_often_early_as_late() -> None:
    gate, places = SequentialTest(GatePlan()), {"A": 0, "B": 0}
    for _ in range(2):
        for place, side in enumerate(gate.order()):
            places[side] += place
        gate.add([1.0, 1.0], [1.0, 1.0])
    assert places == {"A": 2 * 3, "B": 2 * 3}  # 0 + 3 and 1 + 2


@given(st.floats(0.5, 2.0), st.floats(-0.2, 0.2), st.floats(0.8, 1.25))
def test_a_steady_drift_falls_on_both_sides_alike(speed: float, drift: float, ratio: float) -> None:
    gate = SequentialTest(GatePlan())
    for _ in range(2):
        times: dict[str, list[float]] = {"A": [], "B": []}
        for place, side in enumerate(gate.order()):
            times[side].append(speed * math.exp(drift * place) * (ratio if side == "B" else 1.0))
        gate.add(times["A"], times["B"])
    assert gate.values == pytest.approx([math.log(ratio)] * 2, abs=1e-9)
    assert gate.ratio == pytest.approx(ratio)


def test_nothing_is_decided_before_the_least_blocks() -> None:
    gate = SequentialTest(GatePlan())
    for block in range(6):
        assert not gate.decided, block
        gate.add([1.0, 1.0], [2.0, 2.0])
    assert gate.decided
    assert gate.slower


def test_a_faster_and_an_equal_b_are_not_slower() -> None:
    for seed in range(10):
        assert not decided(-0.05, 0.005, seed).slower
        assert not decided(0.0, 0.005, seed).slower


def test_noise_that_hides_the_limit_is_not_decided_but_ends() -> None:
    gate = decided(0.02, 0.5, 1, GatePlan(most_blocks=10))
    assert (gate.blocks, gate.sure, gate.slower) == (10, False, False)


@pytest.mark.parametrize(("slowdown", "least", "most"), [(0.0, 0, 2), (0.02, 95, 100), (0.05, 98, 100)])
def test_how_often_a_slowdown_is_found_in_100_pairs(slowdown: float, least: int, most: int) -> None:
    assert least <= sum(decided(slowdown, 0.01, seed).slower for seed in range(100)) <= most
