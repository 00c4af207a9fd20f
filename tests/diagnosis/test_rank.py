"""Which ranks others wait for: those that stand out, none where lateness goes round."""

import pytest

from aorta.artefacts.replayed import Lateness, LatenessTable
from aorta.diagnosis.rank import RankCosts, waited_for
from aorta.metrics.charges import Charge
from aorta.metrics.lateness import Pattern


def costs(lost: list[float]) -> list[RankCosts]:
    """Ranks that lose `lost[r]` ms to rank r: each charge is carried by the next rank."""
    ranks = len(lost)
    charged: dict[int, dict[Charge, float]] = {
        (rank + 1) % ranks: {(rank, "host"): ms} for rank, ms in enumerate(lost) if ms
    }
    return [RankCosts(rank, 50.0, 40.0, 0.0, 0.0, 0.0, 10.0, charged.get(rank, {})) for rank in range(ranks)]


def table(
    often: list[float], pattern: Pattern = "intermittent", late_ms: list[float] | None = None
) -> LatenessTable:
    """Rank r was late in `often[r]` of 100 steps, by `late_ms[r]`."""
    rows = [
        Lateness(
            rank=rank,
            host=None,
            pattern=pattern,
            late_steps=int(100 * share),
            share_of_steps=share,
            since_step=0,
            late_ms=late_ms[rank] if late_ms else 9.0,
        )
        for rank, share in enumerate(often)
        if share
    ]
    return LatenessTable(steps=100, threshold_ms=5.0, ranks=rows, nodes=[], scope="rank")


@pytest.mark.parametrize(
    ("lost", "often", "expected"),
    [
        ([6, 4, 9, 16], [0.2, 0.17, 0.29, 0.49], []),  # a jittery host: 25 of 35 on two, 17.5 by chance
        ([7, 35, 30, 28], [0.2, 0.34, 0.2, 0.46], []),  # three of four carry 93, the fourth is late as often
        ([0, 0, 40, 0], [0.0, 0.0, 1.0, 0.0], [2]),  # late in every step
        ([0, 0, 40, 0], [0.0, 0.0, 0.2, 0.0], [2]),  # in one of five, and all of the charge
        ([6, 6, 24, 6], [0.2, 0.2, 0.9, 0.2], [2]),  # in most steps: the jitter of the rest hides it not
        ([6, 6, 24, 6], [0.1, 0.1, 0.4, 0.1], []),  # neither in most steps nor with most of the charge
        ([20, 20, 0, 0], [0.9, 0.9, 0.0, 0.0], [0, 1]),  # two of a node
        ([0, 0, 40, 0], [0.0, 0.0, 0.0, 0.0], [2]),  # below what lateness counts at each of its collectives
        ([10, 10, 10, 10], [0.25] * 4, []),
        ([0, 0, 0, 0], [0.0] * 4, []),
    ],
)
def test_only_ranks_that_stand_out_are_named(
    lost: list[float], often: list[float], expected: list[int]
) -> None:
    assert waited_for(costs(lost), 0.5, table(often)) == expected


def test_a_single_stretch_of_another_rank_changes_nothing() -> None:
    late = table([0.2, 0.0, 0.2, 0.0], "one_off")
    assert waited_for(costs([1, 0, 39, 0]), 0.5, late) == [2]
    assert waited_for(costs([1, 0, 39, 0]), 0.5, table([0.2, 0.0, 0.2, 0.0])) == []


def test_without_lateness_the_charge_decides() -> None:
    # One of four carries 25 % by chance; beyond that 75 % of the other 75 % is 81.25 % in all.
    assert waited_for(costs([0, 0, 82, 18]), 0.5, None) == [2]
    assert waited_for(costs([0, 0, 81, 19]), 0.5, None) == []


@pytest.mark.parametrize(
    ("late_ms", "expected"),
    [
        ([90.0, 0.0, 80.0, 0.0], [0, 2]),  # slow together: the last one has all of the charge
        ([90.0, 0.0, 40.0, 0.0], [0]),  # a much smaller lateness is another matter
        ([90.0, 0.0, 0.0, 0.0], [0]),
        ([90.0, 90.0, 90.0, 90.0], []),  # all are
    ],
)
def test_ranks_that_are_late_together_are_named_together(late_ms: list[float], expected: list[int]) -> None:
    often = [1.0 if ms else 0.0 for ms in late_ms]
    late = table(often, "persistent", late_ms)
    assert waited_for(costs([40, 0, 0, 0]), 0.5, late) == expected


def test_lateness_now_and_then_joins_nobody() -> None:
    late = table([1.0, 0.0, 0.3, 0.0], "intermittent")
    assert waited_for(costs([40, 0, 0, 0]), 0.5, late) == [0]


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ([70.0, 69.0, 40.0, 40.0, 40.0], [0, 1]),  # without rank 0 the others would wait for rank 1
        ([70.0, 56.0, 40.0, 40.0, 40.0], [0, 1]),  # by half of it
        ([70.0, 54.0, 40.0, 40.0, 40.0], [0]),  # by less
        ([41.0, 41.0, 40.0, 40.0, 40.0], [0]),  # which does not explain why rank 0 is waited for
        ([40.0, 40.0, 40.0, 40.0, 40.0], [0]),
    ],
)
@pytest.mark.parametrize("cause", ["compute", "host", "traced host"])
def test_ranks_as_slow_as_the_one_that_is_waited_for_are_named_with_it(
    takes: list[float], expected: list[int], cause: str
) -> None:
    """All wait 20 ms for rank 0 alone, which comes late to many collectives by less than counts as late."""
    charge: Charge = (0, "compute" if cause == "compute" else "host")
    made = [
        RankCosts(
            rank,
            100.0,
            compute_ms=ms if cause == "compute" else 10.0,
            data_wait_ms=0.0,
            host_ms=ms if cause == "host" else 5.0,
            copy_ms=0.0,
            exposed_comm_ms=20.0 if rank else 0.0,
            charged_ms={charge: 20.0} if rank else {},
            host_work_ms=ms if cause == "traced host" else None,
        )
        for rank, ms in enumerate(takes)
    ]
    assert waited_for(made, 0.5, table([0.0] * 5)) == expected
    assert waited_for(made, 0.5, None) == expected


def test_what_is_little_of_a_charge_names_nobody_with_it() -> None:
    """Rank 1 is waited for for its compute, and for 1 ms for its host; rank 0's host is as slow."""
    charges: dict[Charge, float] = {(1, "compute"): 60.0, (1, "host"): 1.0}
    made = [
        RankCosts(
            rank, 200.0, compute, 0.0, host, 0.0, 0.0 if rank == 1 else 61.0, {} if rank == 1 else charges
        )
        for rank, (compute, host) in enumerate(((120.0, 2.0), (190.0, 2.0), (120.0, 1.0), (120.0, 1.0)))
    ]
    assert waited_for(made, 0.5, None) == [1]


@pytest.mark.parametrize(("computes", "expected"), [(10.0, [2]), (38.0, [2, 3])])
def test_a_rank_that_meets_the_slow_one_first_is_late_because_of_it(
    computes: float, expected: list[int]
) -> None:
    """Ranks 2 and 3 are one group and late to the next one; rank 2 computes 40 ms and most ranks 10."""
    charged: list[dict[Charge, float]] = [{(2, "compute"): 30.0}, {(2, "compute"): 30.0}, {}, {}]
    own = [10.0, 10.0, 40.0, computes]
    made = [RankCosts(rank, 50.0, own[rank], 0.0, 0.0, 0.0, 10.0, charged[rank]) for rank in range(4)]
    late = table([0.0, 0.0, 1.0, 1.0], "persistent", [0.0, 0.0, 30.0, 28.0])
    assert waited_for(made, 0.5, late) == expected
