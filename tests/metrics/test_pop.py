"""POP factors: the golden case, the identities, and what is not known."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.measured import RankBreakdown
from aorta.metrics.pop import pop, run_pop


def test_the_golden_case() -> None:
    found = pop({0: 6, 1: 6, 2: 6, 3: 8}, 10.0, ideal_ms=9.0, nodes={0: "a", 1: "a", 2: "b", 3: "b"})
    assert found is not None
    assert found.parallel == pytest.approx(0.65)
    assert found.load_balance == pytest.approx(0.8125)
    assert found.communication == pytest.approx(0.8)
    assert found.serialisation == pytest.approx(8 / 9)
    assert found.transfer == pytest.approx(0.9)
    assert found.load_balance_inter_node == pytest.approx(6.5 / 7)
    assert found.load_balance_intra_node == pytest.approx(7 / 8)
    # Lost of T = 10: 1.5 to imbalance, 1 to serialisation, 1 to transfer.
    assert found.additive_load_balance == pytest.approx(0.85)
    assert found.additive_serialisation == pytest.approx(0.9)
    assert found.additive_transfer == pytest.approx(0.9)
    assert found.device is None


@given(
    st.lists(st.floats(0.5, 100.0), min_size=1, max_size=8),
    st.floats(0.0, 100.0),
    st.floats(0.0, 1.0),
)
def test_factors_multiply_and_losses_add_up(useful: list[float], more: float, share: float) -> None:
    step = max(useful) + more
    nodes = {rank: f"node{rank // 2}" for rank in range(len(useful))}
    found = pop(dict(enumerate(useful)), step, ideal_ms=max(useful) + share * more, nodes=nodes)
    assert found is not None
    assert found.serialisation is not None
    assert found.transfer is not None
    assert found.additive_serialisation is not None
    assert found.additive_transfer is not None
    assert found.load_balance_inter_node is not None
    assert found.load_balance_intra_node is not None
    assert found.parallel == pytest.approx(sum(useful) / (len(useful) * step))
    assert found.load_balance * found.serialisation * found.transfer == pytest.approx(found.parallel)
    assert found.load_balance_inter_node * found.load_balance_intra_node == pytest.approx(found.load_balance)
    lost = (
        (1 - found.additive_load_balance) + (1 - found.additive_serialisation) + (1 - found.additive_transfer)
    )
    assert 1 - lost == pytest.approx(found.parallel)


def row(rank: int, *, compute: float = 60.0, comm: float = 20.0, copy: float | None = 5.0) -> RankBreakdown:
    return RankBreakdown(
        rank=rank,
        host="a",
        steps=20,
        step_ms=100.0,
        compute_ms=compute,
        exposed_comm_ms=comm,
        exposed_copy_ms=copy,
        data_wait_ms=0.0,
        host_ms=100.0 - compute - comm - (copy or 0.0),
        comm_ms=comm,
        overlap_ratio=None,
    )


def test_the_devices_branch_says_what_hosts_and_what_transfers_leave() -> None:
    found = run_pop([row(0), row(1)], ideal_ratio=None, nodes={0: "a", 1: "a"}, cuda=True, reason="why")
    assert found is not None
    assert found.device is not None
    assert found.device.orchestration == pytest.approx(0.85)
    assert found.device.communication == pytest.approx(60 / 85)
    assert found.device.parallel == pytest.approx(0.6)
    assert (found.serialisation, found.transfer, found.reason) == (None, None, "why")


def test_a_gpu_that_waits_while_its_own_host_works_is_no_busier_by_that() -> None:
    """Of 25 ms of communication beside 60 of compute the own host takes 15 anyway, on both ranks or one."""
    waits = [msgspec.structs.replace(row(rank), own_host_wait_ms=15.0) for rank in (0, 1)]
    for rows, busiest in ((waits, 0.7), ([waits[0], row(1)], 0.85)):
        found = run_pop(rows, ideal_ratio=None, nodes={}, cuda=True)
        assert found is not None
        assert found.device is not None
        assert found.device.orchestration == pytest.approx(busiest)
        assert found.device.communication == pytest.approx(0.6 / busiest)


def test_unknown_nodes_have_no_balance_between_them_and_nothing_useful_no_factors() -> None:
    found = run_pop([row(0), row(1)], ideal_ratio=0.9, nodes={0: "a"}, cuda=False)
    assert found is not None
    assert found.load_balance_inter_node is None
    assert found.transfer == pytest.approx(0.9)
    assert run_pop([row(0, compute=0.0)], ideal_ratio=None, nodes={}, cuda=False) is None
    assert run_pop([], ideal_ratio=None, nodes={}, cuda=False) is None


def test_an_ideal_step_is_never_below_the_work_nor_above_the_step() -> None:
    below, above = (pop({0: 8.0}, 10.0, ideal_ms=ideal) for ideal in (5.0, 12.0))
    assert below is not None
    assert above is not None
    assert (below.serialisation, above.transfer) == (1.0, 1.0)
