"""The matrix of standstills, and when a run of it counts as right."""

from __future__ import annotations

import pytest

from aorta.validation.hangs import KINDS, SLOW, HangTrial, hang_matrix, summary
from aorta.workloads.hang import CASES


def trial(case, **changes):
    told = {"verdict": "hang", "kind": KINDS.get(case), "ranks": [1], "after_s": 12.0} | changes
    return HangTrial(cell=case, case=case, nodes=1, rank=1, **told)


def test_every_case_of_the_program_is_in_the_matrix_on_every_number_of_nodes():
    cells = hang_matrix()
    assert {cell.case for cell in cells} == set(CASES) == {*KINDS, *SLOW}
    assert len({cell.name for cell in cells}) == len(cells) == 3 * 3 * len(CASES)
    assert all(cell.rank < cell.nodes * cell.per_node for cell in cells)
    assert sum(cell.case not in SLOW for cell in cells) >= 60
    assert sum(cell.case in SLOW for cell in cells) >= 20


@pytest.mark.parametrize(
    ("changes", "right"),
    [({}, True), ({"ranks": [0]}, False), ({"kind": "loader_stuck"}, False), ({"after_s": 15.1}, False)],
)
def test_rank_kind_and_time_have_to_be_right(changes, right):
    assert trial("sleeping", **changes).right is right


@pytest.mark.parametrize(("verdict", "right"), [("incomplete", True), ("hang", False), ("healthy", False)])
@pytest.mark.parametrize("case", ["killed", "other_size"])
def test_a_job_that_a_rank_ends_is_no_standstill_and_not_healthy(case, verdict, right):
    assert trial(case, verdict=verdict, kind=None, ranks=[]).right is right


def test_a_slow_run_is_right_if_nothing_was_noticed():
    quiet = trial("validating", verdict="healthy", after_s=None)
    assert quiet.right
    assert not trial("validating").right
    assert not trial("validating", verdict="incomplete").right
    assert "false alarms in 1" in summary([quiet])
