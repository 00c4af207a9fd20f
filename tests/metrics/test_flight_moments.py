"""Dumps that were made at different times: an old one does not tell which calls its rank has missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aorta.metrics.flight_moments import outdated
from aorta.metrics.standstill import standstill, why_none
from aorta.readers.flight import decode
from tests.support.flight_jobs import Job

SECOND = 1_000_000_000


def recordings(name, *, ended, late_s=600):
    """Two ranks; the second one has made its last call after its dump, or never."""
    calls = [{"group": "0", "name": name}] * 6
    made = Job(2, {}, [calls, calls])
    if not ended:
        made.ranks[1].stops_at = 5
    first, second = (decode(data, str(rank), rank) for rank, data in made.run().dumps().items())
    if ended:
        second = replace(second, calls=second.calls[:5], enqueued={"0": 5}, completed={"0": 4})
        second = replace(second, calls=(*second.calls[:4], replace(second.calls[4], finished=False)))
    return [replace(item, taken_ns=made.clock + late_s * SECOND) for item in (first, second)]


def test_a_call_that_needs_all_and_has_ended_was_made_by_all():
    dumps = recordings("all_reduce", ended=True)
    assert outdated({0: dumps[0], 1: dumps[1]}) == {1}
    assert standstill(dumps) is None
    assert why_none(dumps).startswith("Not used, because they are older than the other dumps: rank 1.")


def test_a_call_that_did_not_end_is_missed():
    dumps = recordings("all_reduce", ended=False)
    assert outdated({0: dumps[0], 1: dumps[1]}) == set()
    found = standstill(dumps)
    assert found is not None
    assert [(item.rank, item.kind) for item in found.guilty] == [(1, "host_stuck")]


def test_a_broadcast_ends_at_its_root_before_the_others_make_it():
    dumps = recordings("broadcast", ended=True)
    assert outdated({0: dumps[0], 1: dumps[1]}) == set()


@pytest.mark.parametrize(("before_s", "old"), [(10, {1}), (1, set())])
def test_a_dump_before_the_others_last_call(before_s, old):
    first, second = recordings("all_reduce", ended=False)
    newest = max(call.created_ns for call in first.calls)
    dumps = [first, replace(second, taken_ns=newest - before_s * SECOND)]
    assert outdated(dict(enumerate(dumps))) == old
    assert (standstill(dumps) is None) == bool(old)
