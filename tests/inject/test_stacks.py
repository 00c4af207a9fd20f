"""Samples of the training thread: how often, and the time that they stand for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from aorta.inject.stacks import SPARSE_S, SPREAD, USUAL_S, Sampler, Sources, Stacks, next_look_s


def stacks(part: str | None = "other") -> Stacks:
    return Stacks(threading.get_ident(), lambda: part)


@pytest.mark.parametrize(
    ("sampled_s", "mean_s"), [(0.0, 0.06), (6.0, 0.06), (10.0, 0.1), (25.0, 0.25), (1e6, 0.25)]
)
def test_samples_grow_fewer_as_more_time_was_sampled(sampled_s: float, mean_s: float) -> None:
    assert next_look_s(sampled_s, 0.5) == pytest.approx(mean_s)
    assert next_look_s(sampled_s, 0.0) == pytest.approx(mean_s * (1 - SPREAD))
    assert next_look_s(sampled_s, 1.0) == pytest.approx(mean_s * (1 + SPREAD))


def test_a_phase_that_begins_late_has_the_share_of_its_time() -> None:
    """Early samples follow each other sooner, and count for less."""
    found = stacks()
    for _ in range(100):  # 6 s
        early = sys._getframe()
        found.note("other", early, USUAL_S)
        found.sampled_s += USUAL_S

    def late() -> None:
        found.note("other", sys._getframe(), SPARSE_S)

    for _ in range(24):  # 6 s
        late()
    places = {place.function.rpartition(".")[2]: place for place in found.places()}
    first, second = places["test_a_phase_that_begins_late_has_the_share_of_its_time"], places["late"]
    assert (first.samples, second.samples) == (100, 24)
    assert first.time_ms == pytest.approx(6000)
    assert second.time_ms == pytest.approx(6000)


def test_a_place_names_the_line_that_takes_longest_not_the_one_found_most_often() -> None:
    found = stacks()

    def lines() -> Iterator[int]:
        for _ in range(3):
            found.note("other", sys._getframe(), 0.06)
        found.note("other", sys._getframe(), 0.25)
        yield sys._getframe().f_lineno - 1

    longest = next(lines())
    (place,) = found.places()
    assert (place.line, place.samples) == (longest, 4)


def test_a_noted_place_has_a_number_and_no_time() -> None:
    """A place that was sampled for no time has a time, which is 0."""
    found = stacks()
    for _ in range(2):
        found.note("checkpoint", sys._getframe())
    found.note("other", sys._getframe(), 0.0)
    noted, sampled = found.places()
    assert (noted.part, noted.samples, noted.time_ms) == ("checkpoint", 2, None)
    assert (sampled.part, sampled.samples, sampled.time_ms) == ("other", 1, 0.0)
    assert found.parts == {}


def test_samples_outside_of_steady_steps_stand_for_nothing() -> None:
    outside, inside = stacks(None), stacks("forward")
    outside.sample(0.5)
    assert (outside.parts, outside.times_ms(), outside.sampled_s) == ({}, {}, 0.0)
    assert outside.interval_ms == 500  # the thread did look
    inside.sample(0.5)
    inside.sample(0.25)
    assert (inside.parts, inside.times_ms(), inside.sampled_s) == ({"forward": 2}, {"forward": 750.0}, 0.75)


def test_the_programs_files_are_told_from_torch_and_installed_packages() -> None:
    sources = Sources()
    kinds = [sources.kind(file) for file in (__file__, pytest.__file__, threading.__file__, "<string>")]
    assert kinds == ["own", "library", "hidden", "hidden"]
    assert sources.known[__file__] == "own"


def test_the_thread_looks_until_it_is_stopped_and_can_be_stopped_twice() -> None:
    looked, found = threading.Event(), stacks()
    sampler = Sampler(found, lambda: None, lambda _: looked.set())
    assert looked.wait(10)
    sampler.stop()
    sampler.stop()
    samples = sum(found.parts.values())
    assert samples
    time.sleep(2 * USUAL_S)
    assert sum(found.parts.values()) == samples


def test_a_look_that_fails_ends_the_samples_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(_: float) -> None:
        raise OSError("no space")

    sampler = Sampler(stacks(), lambda: None, fails)
    sampler._thread.join(10)
    assert not sampler._thread.is_alive()
    sampler.stop()
    assert capfd.readouterr() == ("", "")
