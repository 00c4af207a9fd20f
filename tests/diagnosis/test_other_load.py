"""Load of other programs: said first, doubted, and no rank is blamed for what it explains."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Literal

import pytest
from msgspec.structs import replace

from aorta.artefacts.replayed import Lateness, LatenessTable
from aorta.diagnosis.findings import FINDINGS
from aorta.diagnosis.findings._other_load import _heads
from aorta.diagnosis.model import Modelled
from aorta.diagnosis.policy import Policy
from aorta.metrics.collectives import match_collectives
from aorta.metrics.node_load import NodeLoad, crowded, on_one_machine
from aorta.metrics.whatif import Replays
from tests.support.findings import context, finding
from tests.support.steps import step

LOAD = NodeLoad(cpu_pct=100.0, job_cpu_pct=150.0, cpus_usable=4.0, read_mb_per_s=None)
WAITS = {"waits_for_compute_ms": 20.0, "waits_for_host_ms": 1.0}


@pytest.mark.parametrize(
    ("busy", "job", "used"),
    [(100.0, 150.0, 2.5), (100.0, 400.0, None), (60.0, 50.0, None), (None, 50.0, None), (100.0, None, None)],
)
def test_others_count_where_hardly_a_cpu_was_free(
    busy: float | None, job: float | None, used: float | None
) -> None:
    """Of 4 CPUs all busy are 400; 400 - 150 of the job leave 2.5 CPUs to others."""
    found = crowded({"n": replace(LOAD, cpu_pct=busy, job_cpu_pct=job)}, {"n": 4})
    assert found == ({} if used is None else {"n": used})


@pytest.mark.parametrize(
    ("cuda", "waits", "free", "explained"),
    [
        (False, WAITS, False, True),
        (True, WAITS, False, False),  # no CPU load makes kernels longer
        (True, {"waits_for_compute_ms": 1.0, "waits_for_host_ms": 20.0}, False, True),
        (False, WAITS, True, False),
    ],
)
def test_a_load_on_all_nodes_explains_who_is_late(
    cuda: bool, waits: dict[str, float], free: bool, explained: bool
) -> None:
    load = replace(LOAD, cpu_pct=40.0 if free else 100.0)
    hosts = {0: "node0", 1: "node1"}
    seen = context(
        loads={"node0": load, "node1": load}, cpus_machine={"node0": 4, "node1": 4}, cuda=cuda, hosts=hosts
    )
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    why = check(finding("straggler", [1], **waits), seen, Policy.of(None))
    assert (why is not None and "other programs used" in why) == explained


def test_a_load_on_the_late_node_alone_is_its_neighbour() -> None:
    loads = {"node0": replace(LOAD, cpu_pct=30.0), "node1": LOAD}
    hosts = {0: "node0", 1: "node1"}
    seen = context(loads=loads, cpus_machine={"node0": 4, "node1": 4}, cuda=False, hosts=hosts)
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    assert check(finding("straggler", [1], **WAITS), seen, Policy.of(None)) is None


def test_nodes_of_one_machine_share_what_the_job_uses() -> None:
    """Two nodes of one machine with 4 CPUs use 1.5 and 1.0; all are busy, so that others use 1.5."""
    loads = {"n1": LOAD, "n2": replace(LOAD, job_cpu_pct=100.0)}
    together = on_one_machine(loads)
    assert crowded(together, {"n1": 4, "n2": 4}) == {"n1": 1.5, "n2": 1.5}
    unknown = on_one_machine({"n1": LOAD, "n2": replace(LOAD, job_cpu_pct=None)})
    assert crowded(unknown, {"n1": 4, "n2": 4}) == {}


@pytest.mark.parametrize(
    ("pattern", "late_steps", "explained"), [("persistent", 20, False), ("intermittent", 8, True)]
)
def test_a_load_on_all_nodes_does_not_make_one_rank_late_in_each_step(
    pattern: Literal["persistent", "intermittent"], late_steps: int, explained: bool
) -> None:
    rank = Lateness(
        rank=1,
        host="node1",
        pattern=pattern,
        late_steps=late_steps,
        share_of_steps=late_steps / 20,
        since_step=0,
        late_ms=30.0,
    )
    late = LatenessTable(steps=20, threshold_ms=10.0, ranks=[rank], nodes=[], scope="rank")
    seen = context(
        loads={"node0": LOAD, "node1": LOAD}, cpus_machine={"node0": 4, "node1": 4}, cuda=False,
        model=Modelled(None, "", late, {}),
    )  # fmt: skip
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    assert (check(finding("straggler", [1], **WAITS), seen, Policy.of(None)) is not None) is explained


def late_row(rank: int, times: int | None) -> Lateness:
    """A rank that is late in 30 of 200 steps, so many times."""
    return Lateness(
        rank=rank, host="node0", pattern="intermittent", late_steps=30, late_times=times, share_of_steps=0.15,
        since_step=0, late_ms=30.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "others", "world", "explained"),
    [
        (7, 0, 2, True),  # 2 / 2**7 = 1.6 %
        (8, 0, 2, False),  # 2 / 2**8 = 0.8 %
        (8, 0, 4, True),  # 4 / 2**8 = 1.6 %
        (11, 1, 2, False),  # 2 * (1 + 12) / 2**12 = 0.6 %
        (10, 1, 2, True),  # 2 * (1 + 11) / 2**11 = 1.2 %
        (30, 25, 2, True),
        (None, 0, 2, True),
    ],
)
def test_a_load_on_all_nodes_does_not_choose_one_rank_time_and_again(
    mine: int | None, others: int, world: int, explained: bool
) -> None:
    rows = [late_row(1, mine), *([late_row(0, others)] if others else [])]
    late = LatenessTable(steps=200, threshold_ms=10.0, ranks=rows, nodes=[], scope="rank")
    hosts = dict.fromkeys(range(world), "node0")
    seen = context(
        loads={"node0": LOAD}, cpus_machine={"node0": 4}, cuda=False, hosts=hosts, world_size=world,
        model=Modelled(None, "", late, {}),
    )  # fmt: skip
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    assert (check(finding("straggler", [1], **WAITS), seen, Policy.of(None)) is not None) is explained


@pytest.mark.parametrize(
    ("share", "others", "explained"),
    [
        (0.5, 25, False),  # 100 of 125 late steps
        (0.5, 26, True),  # 100 of 126, less than 80 %
        (0.49, 0, True),  # not in most steps, and at one time only
    ],
)
def test_a_load_does_not_make_one_rank_late_in_most_steps_and_the_others_hardly_ever(
    share: float, others: int, explained: bool
) -> None:
    mine = replace(late_row(1, 1), late_steps=100, share_of_steps=share)
    rows = [mine, *([replace(late_row(0, 1), late_steps=others)] if others else [])]
    late = LatenessTable(steps=200, threshold_ms=10.0, ranks=rows, nodes=[], scope="rank")
    seen = context(
        loads={"node0": LOAD}, cpus_machine={"node0": 4}, cuda=False, hosts={0: "node0", 1: "node0"},
        model=Modelled(None, "", late, {}),
    )  # fmt: skip
    check = FINDINGS["straggler"].unsupported
    assert check is not None
    assert (check(finding("straggler", [1], **WAITS), seen, Policy.of(None)) is not None) is explained


def exchanging(lasting_ms: Sequence[int]) -> Modelled:
    """Steps of two ranks: 70 ms of compute, and one exchange that takes so long."""
    records = {
        rank: [
            step(
                number,
                (200 * number, 200 * number + 70 + took),
                rank=rank,
                compute=[(200 * number, 200 * number + 70)],
                collectives=[(200 * number + 70, 200 * number + 70 + took, "world", number)],
            )
            for number, took in enumerate(lasting_ms)
        ]
        for rank in (0, 1)
    }
    matched = match_collectives(records, dict.fromkeys(records, "clock"))
    assert not isinstance(matched, str)
    replays = Replays.of(matched, range(len(lasting_ms)))
    assert isinstance(replays, Replays)
    return Modelled(replays, None, None, {})


@pytest.mark.parametrize(
    ("lasting_ms", "load", "cuda", "explained"),
    [
        ([30, 30, 30, 6] * 5, LOAD, False, True),
        ([30] * 20, LOAD, False, False),  # it is as slow at its best
        ([30, 30, 30, 6] * 5, replace(LOAD, cpu_pct=40.0), False, False),  # cores were free
        ([30, 30, 30, 6] * 5, LOAD, True, False),  # GPUs exchange
    ],
)
def test_a_load_explains_an_exchange_that_is_fast_at_times(
    lasting_ms: list[int], load: NodeLoad, cuda: bool, explained: bool
) -> None:
    """30 % of the step is transfer, 24 ms per call: at 6 ms it is 30 % x 6 / 24 = 7.5 % < 15 %."""
    seen = context(
        loads={"node0": load, "node1": load},
        cpus_machine={"node0": 4, "node1": 4},
        cuda=cuda,
        model=exchanging(lasting_ms),
    )
    check = FINDINGS["communication"].unsupported
    assert check is not None
    why = check(finding("communication"), seen, Policy.of(None))
    assert (why is not None and "it would take 7.5 %" in why) is explained
    assert (why is None) is not explained


@pytest.mark.parametrize("throws", [0, 1, 7, 40])
def test_the_chance_of_heads_is_that_of_all_ways_to_throw_them(throws: int) -> None:
    for least in range(throws + 1):
        ways = sum(comb(throws, heads) for heads in range(least, throws + 1))
        assert _heads(least, throws) == pytest.approx(ways / 2**throws)


def test_chances_of_long_runs_are_numbers() -> None:
    # 10,200 of 20,000: 200 over the mean, at a standard deviation of 71.
    assert 0.001 < _heads(10_200, 20_000) < 0.003
    assert _heads(20_000, 20_000) == 0.0, "2**-20000 is no float but 0"
