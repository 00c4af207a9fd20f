"""The check of the replay: it must be able to fail, and only for what the model cannot know."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aorta.metrics.replay_check import error_pct
from aorta.metrics.replay_model import build
from aorta.metrics.whatif import Replays
from tests.support.exchanges import late_loader, matched


def replays(transfers: Sequence[int], steps: Sequence[int] | None = None) -> Replays:
    records = late_loader(transfers=transfers)
    if steps is not None:
        records = {rank: [items[step] for step in steps] for rank, items in records.items()}
    found = Replays.of(matched(records), range(len(transfers)) if steps is None else steps)
    assert isinstance(found, Replays)
    return found


def test_transfers_that_are_alike_give_the_steps_of_the_other_half() -> None:
    # 55 ms beside the transfer. Halves 0 1 1 0: 10 and 10 against 12 and 8, so 65 ms each.
    found = replays([10, 12, 8, 10])
    assert found.error_pct == pytest.approx(0.0)
    assert found.doubt is None


def test_what_the_network_did_once_is_missed_and_withholds_predictions() -> None:
    # Halves 0 1 1 0: means of the transfer are (10 + 50) / 2 and 10, of the step 85 and 65.
    found = replays([10, 10, 10, 50])
    assert found.modelled_ms == found.measured_ms
    assert found.error_pct == pytest.approx(100 * (85 - 65) / 65)
    assert found.doubt is not None
    assert "is 30.8 % off the measured step (limit 3 %)" in found.doubt


@pytest.mark.parametrize(("slow", "kept"), [(13, True), (14, False)])
def test_three_percent_is_the_most(slow: int, kept: bool) -> None:
    # 65 against 65 + (slow - 10) / 2: 2.3 % and 3.1 % of 65.
    assert (replays([10, 10, 10, slow]).doubt is None) is kept


def test_a_drift_and_calls_of_every_second_step_are_in_both_halves() -> None:
    assert replays(range(10, 18)).error_pct == pytest.approx(0.0)
    assert replays([10, 40] * 4).error_pct == pytest.approx(0.0)


def test_halves_go_on_over_a_gap_between_steps() -> None:
    # Kept steps 0 1 3 4 are of halves 0 1 1 0: all of the slow ones in one half.
    found = replays([10, 30, 10, 30, 10], [0, 1, 3, 4])
    assert len(found.runs) == 2
    assert found.error_pct == pytest.approx(100 * (85 - 65) / 65)


def test_lateness_that_changes_from_step_to_step_is_none_of_the_networks() -> None:
    """Own work is what predictions take away, and stays each step's own."""
    records = late_loader(transfers=[10] * 4)
    slow = late_loader(load=90, transfers=[10] * 4)
    assert error_pct(build(matched(records), range(4))) == pytest.approx(0.0)
    assert error_pct(build(matched(slow), range(4))) == pytest.approx(0.0)


def test_a_single_step_has_no_check_and_no_predictions() -> None:
    found = replays([10])
    assert found.error_pct is None
    assert found.doubt is not None
    assert "cannot be checked" in found.doubt


def test_a_rank_that_exchanges_nothing_has_nothing_to_check_and_is_predicted() -> None:
    found = Replays.of(matched({0: late_loader()[0]}), range(3))
    assert isinstance(found, Replays)
    assert (found.error_pct, found.doubt) == (None, None)
