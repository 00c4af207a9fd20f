"""Mistakes that are differences between ranks, and the weight that the run's untraced steps tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from aorta.artefacts.hostline import ComputeKind, HostLine, Item, Pace, Tag, TagTime
from aorta.artefacts.mistakes import Mistake
from aorta.artefacts.packed import pack
from aorta.diagnosis.mistaken import mistakes_of
from aorta.metrics.profiler_weight import Lines
from tests.diagnosis.test_mistaken import MS, gain_of, host_line
from tests.support.host_lines import Row, launch, line

EXCHANGE = launch(MS // 10, MS, stream=9, kind=int(ComputeKind.COMMUNICATION), group=0, bytes=4_000_000)


def rank(
    step: Sequence[Row], operators: float = 100.0, tag: Tag | None = None, tagged_ns: int = 0
) -> HostLine:
    """Three equal steps of a rank, with some of the first launch's work for a tag."""
    table = line([step] * 3)
    made = host_line(table, {}, ddp_forward=1.0, optimizer=1.0)
    pace = Pace(operators=operators, calls=0, spacing_ns=None, launch_ns=None, step_ns=1.0)
    times = []
    if tag is not None:
        first = np.append(True, table.step[1:] != table.step[:-1])
        times = [TagTime(tag=int(tag), work_ns=pack(np.where(np.roll(first, 1), tagged_ns, 0)))]
    found: HostLine = msgspec.structs.replace(made, pace=pace, tagged=times)
    return found


def named(*ranks: HostLine) -> list[Mistake]:
    lines = Lines.of(dict(enumerate(ranks)))
    assert lines is not None
    return mistakes_of(lines)[0]


@pytest.mark.parametrize(("times", "gain"), [(1.5, 30 / 20), (1.2, None), (1.0, None)])
def test_a_gpu_that_takes_longer_for_the_same_kernels(times: float, gain: float | None) -> None:
    def one(ms: float) -> HostLine:
        return rank([launch(MS, round(ms * MS), kind=int(ComputeKind.TENSOR_MATMUL)), EXCHANGE])

    found = gain_of("slow_gpu", named(one(20), one(20), one(20 * times)))
    assert found == (None if gain is None else pytest.approx(gain, rel=0.05))


@pytest.mark.parametrize(("kernels", "named_as"), [(10, "slow_gpu"), (16, "seq_skew")])
def test_a_rank_that_runs_more_kernels_has_more_work_and_no_slow_gpu(kernels: int, named_as: str) -> None:
    # The last rank computes for 32 ms, the others for 20: in as many kernels, or in more of the same ones.
    def one(count: int, ms: float) -> HostLine:
        each = launch(MS // 10, round(ms * MS / count), kind=int(ComputeKind.TENSOR_MATMUL))
        return rank([*[each] * count, EXCHANGE])

    found = {item.id: item.ranks for item in named(one(10, 20), one(10, 20), one(kernels, 32))}
    assert {name: found.get(name) for name in ("slow_gpu", "seq_skew")} == {
        "slow_gpu": None, "seq_skew": None, named_as: [2]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("operators", "tag", "named_as"),
    [(120.0, Tag.CPU_OPERATOR, True), (100.0, Tag.CPU_OPERATOR, False), (100.0, Tag.SILENT, True)],
    ids=["operators of its own", "the same operators, slower", "Python of its own"],
)
def test_work_that_only_one_rank_does(operators: float, tag: Tag, named_as: bool) -> None:
    busy = rank([launch(40 * MS, MS), EXCHANGE], operators, tag, 30 * MS)
    idle = rank([launch(10 * MS, MS), EXCHANGE])
    found = {item.id: item.ranks for item in named(busy, idle)}
    assert found.get("rank0_logging") == ([0] if named_as else None)


@pytest.mark.parametrize(("logging", "named_as"), [([0, 1, 2], True), ([0, 2], True), ([1], False)])
def test_logging_in_one_captured_step_may_be_every_fiftieth(logging: Sequence[int], named_as: bool) -> None:
    row, logs = launch(10 * MS, MS), launch(100 * MS, MS, tags=int(Tag.SILENT))
    table = line([[logs if step in logging else row, EXCHANGE] for step in range(3)])
    busy = host_line(table, {Tag.SILENT: np.where(table.tags > 0, 90 * MS, 0).tolist()})
    found = {item.id: item.ranks for item in named(busy, rank([row, EXCHANGE]))}
    assert found.get("rank0_logging") == ([0] if named_as else None)


@pytest.mark.parametrize(
    ("reads", "named_as"), [(8, "rank0_logging"), (2, "rank0_evaluation"), (0, "rank0_evaluation")]
)
def test_statistics_on_the_gpu_are_read_and_an_evaluation_hardly_is(reads: int, named_as: str) -> None:
    each = launch(MS, MS, kind=int(ComputeKind.ELEMENTWISE))
    read: Row = {
        "item": int(Item.SYNC),
        "work_ns": MS // 10,
        "tags": int(Tag.READ_BACK),
        "held_ns": MS,
        "needs": 1,
    }
    own = [row for number in range(8) for row in ((each, read) if number < reads else (each,))]
    found = {
        item.id: item.ranks
        for item in named(rank([*[each] * 8, EXCHANGE, *own]), rank([*[each] * 8, EXCHANGE]))
    }
    both = ("rank0_logging", "rank0_evaluation")
    assert {id_: found.get(id_) for id_ in both} == {**dict.fromkeys(both), named_as: [0]}


@pytest.mark.parametrize(("every", "named_as"), [(1, True), (2, True), (3, True), (9, False)])
def test_an_evaluation_in_some_captured_steps_is_seen_in_those(every: int, named_as: bool) -> None:
    """Four kernels beyond ten are 1.4 times as many in a step, and 1.2 times in the mean of two."""
    each = launch(MS, MS, kind=int(ComputeKind.ELEMENTWISE))
    usual = [*[each] * 10, EXCHANGE]
    with_more = line([[*usual, *[each] * 4] if step % every == every - 1 else usual for step in range(6)])
    found = {
        item.id: item.ranks for item in named(host_line(with_more, {}), host_line(line([usual] * 6), {}))
    }
    assert found.get("rank0_evaluation") == ([0] if named_as else None)


@pytest.mark.parametrize("staged", [False, True])
def test_stages_of_a_pipeline_do_not_evaluate_because_they_launch_more(staged: bool) -> None:
    more = [launch(MS, MS, kind=int(ComputeKind.TENSOR_MATMUL)) for _ in range(8)]
    lines = Lines.of(
        {0: rank([*more, *more, EXCHANGE]), 1: rank([*more, EXCHANGE]), 2: rank([*more, EXCHANGE])}
    )
    assert lines is not None
    ids = [item.id for item in mistakes_of(lines, staged=staged)[0]]
    assert ("rank0_evaluation" in ids) == (not staged)


@pytest.mark.parametrize(
    ("calls", "size", "named_as"), [(42, 4e6, True), (8, 21e6, False), (42, 60e6, False)]
)
def test_buckets_are_small_beside_the_usual_ones(calls: int, size: float, named_as: bool) -> None:
    each = [{**EXCHANGE, "bytes": int(size), "order": number, "work_ns": MS} for number in range(calls)]
    step = [launch(MS, MS, kind=int(ComputeKind.TENSOR_MATMUL)), *each]
    ids = [item.id for item in named(rank(step), rank(step))]
    assert ("small_buckets" in ids) == named_as


def weighed(gpu_ms: int) -> Lines:
    """Steps of 40 ms of the host, of which 1,000 operators of 10 µs are the profiler's: 31 ms at most."""
    row = launch(40 * MS, gpu_ms * MS, edges=2000)
    made = host_line(line([[row]] * 3), {})
    pace = Pace(operators=1000, calls=0, spacing_ns=10_000 / 3.1, launch_ns=None, step_ns=40.0 * MS)
    lines = Lines.of({0: msgspec.structs.replace(made, pace=pace)})
    assert lines is not None
    return lines


@pytest.mark.parametrize(
    ("untraced", "scale"), [(30.0, 1.0), (32.0, 0.8), (28.0, 1.2), (10.0, 1.0), (50.0, 1.0)]
)
def test_the_weight_is_scaled_to_the_untraced_steps_within_its_spread(untraced: float, scale: float) -> None:
    assert weighed(1).calibrated(untraced).scale == pytest.approx(scale, abs=0.03)


def test_where_the_gpu_is_the_limit_untraced_steps_do_not_change_the_weight() -> None:
    assert weighed(60).calibrated(60.0).scale == 1.0
    assert weighed(60).calibrated(55.0).scale == 1.0


@pytest.mark.parametrize(("host_ms", "gain"), [(1, (29 + 1) / (20 + 1)), (30, 1.0)])
def test_uneven_lengths_are_named_also_where_the_host_hides_them(host_ms: int, gain: float) -> None:
    def one(*gpu_ms: int) -> HostLine:
        exchange = {**EXCHANGE, "stream": 7}
        kind = int(ComputeKind.TENSOR_MATMUL)
        steps = [[launch(host_ms * MS, ms * MS, kind=kind), exchange] for ms in gpu_ms]
        return host_line(line(steps), {})

    assert gain_of("seq_imbalance", named(one(29, 11, 29, 11), one(11, 29, 11, 29))) == pytest.approx(
        gain, rel=0.05
    )
    assert gain_of("seq_imbalance", named(one(20, 20, 20, 20), one(20, 20, 20, 20))) is None
