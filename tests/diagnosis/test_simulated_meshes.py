"""Traces of simulated meshes in the forms of Megatron and torchtitan: who is named, and what it gains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.report.run import run_text
from tests.support.simulated import Op, simulate
from tests.support.simulated_jobs import Costs, Shape, Share, equal, pipeline, ring
from tests.support.simulated_traces import Style, write

STEPS = 4
SLOW = 2.5
UNEVEN = (0.4, 1.9, 0.6, 1.5, 0.3, 1.7, 0.5, 1.1)


def described(shape: Shape, words: Mapping[str, str]) -> dict[str, str]:
    """The description of each group of a mesh."""
    places = [(one, other) for one in range(max(shape.pp, shape.dp)) for other in range(8)]
    return {f"{kind} {one} {other}": text for kind, text in words.items() for one, other in places}


MEGATRON = {
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
}
TITAN = {"pp": "mesh_pp", "tp": "mesh_tp", "dp": "mesh_dp_shard"}


def analysed(
    folder: Path, program: dict[int, Sequence[Op]], style: Style, ranks: Sequence[int] | None = None
) -> tuple[Analysis, float]:
    """The analysis, and ms of a step."""
    done = simulate(program, STEPS)
    length = max(one.end for mine in done.values() for one in mine) / STEPS / 1_000
    return analyze_traces(write(folder, done, style, ranks)), length


def without(program: dict[int, Sequence[Op]]) -> float:
    """ms of a step of a program without a fault."""
    done = simulate(program, STEPS)
    return max(one.end for mine in done.values() for one in mine) / STEPS / 1_000


def slow_at(*place: int | None) -> Share:
    """A computation takes `SLOW` times as long at a replica, stage and lane; None: at any."""
    return lambda *here: (
        SLOW if all(one in (None, two) for one, two in zip(place, here[:3], strict=True)) else 1.0
    )


@pytest.mark.parametrize(
    ("schedule", "shape", "words", "place", "named"),
    [
        ("gpipe", Shape(2, 1, 1, 6), TITAN, (None, 1, None), [1]),
        ("1f1b", Shape(4, 2, 1), TITAN, (None, 1, None), [2, 3]),
        ("1f1b", Shape(4, 2, 1), TITAN, (1, 2, 0), [5]),
        ("1f1b", Shape(2, 2, 2, 6), MEGATRON, (1, 1, 1), [7]),
        ("interleaved", Shape(4, 1, 1, 8, 2), MEGATRON, (None, 1, None), [1]),
        ("zero_bubble", Shape(4, 1, 1), TITAN, (None, 2, None), [2]),
    ],
)
def test_the_slow_ranks_are_named_with_their_gain(
    tmp_path: Path,
    schedule: str,
    shape: Shape,
    words: Mapping[str, str],
    place: tuple[int | None, ...],
    named: list[int],
) -> None:
    """Clocks of ranks are a tenth of a second apart. Only the zero-bubble schedule names its passes."""
    labels = schedule == "zero_bubble"
    style = Style(
        described=described(shape, words),
        labels=labels,
        shift={rank: 1e5 * rank for rank in range(shape.world)},
    )
    batched = schedule == "1f1b"
    made = pipeline(schedule, shape, slow_at(*place), batched=batched, labels=labels)
    found, length = analysed(tmp_path, made, style)
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", named)
    speedup = found.findings[0].estimated_speedup
    assert speedup is not None
    fast = without(pipeline(schedule, shape, batched=batched))
    assert speedup.expected == pytest.approx(length / fast, rel=0.1)
    assert found.mesh is not None
    assert (found.mesh.schedule, found.mesh.microbatches) == (schedule, shape.microbatches)


@pytest.mark.parametrize(
    ("schedule", "shape"),
    [("1f1b", Shape(4, 1, 2)), ("interleaved", Shape(4, 1, 1, 8, 2))],
)
def test_a_pipeline_without_a_fault_is_healthy_whatever_its_bubble(
    tmp_path: Path, schedule: str, shape: Shape
) -> None:
    """The schedule's own bubble takes up to (4 - 1) / (8 + 4 - 1) = 27 % of the GPUs' time."""
    found, _ = analysed(tmp_path, pipeline(schedule, shape), Style(described=described(shape, TITAN)))
    assert found.verdict.kind == "healthy"
    assert found.mistakes == []
    assert found.mesh is not None
    groups = {(group.dimension, tuple(group.ranks)) for group in found.mesh.groups}
    if shape.tp > 1:
        # Neighbouring ranks are tensor groups, whatever their number of replicas.
        pairs = {("tensor", (first, first + 1)) for first in range(0, shape.world, 2)}
        assert pairs <= groups


@pytest.mark.parametrize(
    ("stages", "microbatches", "kind"),
    [(2, 2, "pipeline_bubble"), (4, 4, "pipeline_bubble"), (4, 8, "healthy")],
)
def test_too_few_microbatches_are_the_cause_of_idle_gpus(
    tmp_path: Path, stages: int, microbatches: int, kind: str
) -> None:
    """One microbatch per stage leaves (p - 1) / (2p - 1) of the time idle: a third or more."""
    shape = Shape(stages, 1, 1, microbatches)
    found, _ = analysed(tmp_path, pipeline("1f1b", shape), Style(described=described(shape, TITAN)))
    assert found.verdict.kind == kind
    assert found.mesh is not None
    assert found.mesh.bubble is not None
    assert found.mesh.bubble.ideal == pytest.approx((stages - 1) / (microbatches + stages - 1))


def test_few_microbatches_in_a_zero_bubble_schedule_are_found_by_the_measured_bubble(tmp_path: Path) -> None:
    shape = Shape(4, 1, 1, 2)
    made = pipeline("zero_bubble", shape, labels=True)
    found, _ = analysed(tmp_path, made, Style(described=described(shape, TITAN), labels=True))
    assert found.verdict.kind == "pipeline_bubble"
    assert found.mesh is not None
    assert found.mesh.bubble is not None
    assert found.mesh.bubble.ideal is None
    assert found.findings[0].value == pytest.approx(100 * found.mesh.bubble.measured)


def test_uneven_microbatches_and_a_slow_link_are_told_apart(tmp_path: Path) -> None:
    shape = Shape(4, 1, 1)
    style = Style(described=described(shape, MEGATRON))
    uneven, _ = analysed(tmp_path / "a", pipeline("1f1b", shape, lambda *at: UNEVEN[at[3] % 8]), style)
    assert (uneven.verdict.kind, uneven.verdict.ranks) == ("straggler", [])
    assert uneven.findings[0].sub_cause == "uneven_microbatches"
    costs = Costs(link=lambda one, _: 60.0 if one == 1 else 1.0)
    slow, _ = analysed(tmp_path / "b", pipeline("1f1b", shape, costs=costs), style)
    assert (slow.verdict.kind, slow.verdict.ranks) == ("communication", [1, 2])
    assert slow.findings[0].sub_cause == "slow_link"


def test_a_tensor_group_across_a_slow_link_is_named(tmp_path: Path) -> None:
    shape = Shape(2, 2, 2, 4)
    costs = Costs(group=lambda name: 20.0 if name == "tp 1 0" else 1.0)
    made = pipeline("gpipe", shape, costs=costs, batched=True)
    found, _ = analysed(tmp_path, made, Style(described=described(shape, MEGATRON)))
    assert (found.verdict.kind, found.verdict.ranks) == ("communication", [4, 5])
    assert found.findings[0].sub_cause == "slow_link"


@pytest.mark.parametrize(
    ("ranks", "slow", "named"),
    [
        ((0, 2, 4, 6), True, [2]),  # one replica
        ((0, 1, 2, 3, 4, 6, 7), True, [2]),  # rank 5 of the other replica is missing
        ((0, 1, 4, 5, 6, 7), True, []),  # the slow stage is missing
        ((0, 2, 4, 6), False, []),
    ],
)
def test_a_replica_with_all_its_stages_is_judged_without_the_others(
    tmp_path: Path, ranks: Sequence[int], slow: bool, named: list[int]
) -> None:
    shape = Shape(4, 2, 1)
    made = pipeline("1f1b", shape, slow_at(None, 1, None) if slow else equal)
    found, _ = analysed(tmp_path, made, Style(described=described(shape, TITAN)), ranks)
    assert found.verdict.ranks == named
    assert found.verdict.kind == ("straggler" if named else "insufficient_data")


def with_experts(
    program: dict[int, Sequence[Op]], shape: Shape, tokens: Sequence[float]
) -> dict[int, Sequence[Op]]:
    """The program with experts in each pass: the replicas of a stage exchange tokens, and each expert takes
    as long as it gets tokens.
    """
    made: dict[int, Sequence[Op]] = {}
    for rank, ops in program.items():
        stage, replica = divmod(rank, shape.dp)
        ranks, name = tuple(shape.rank(stage, one, 0) for one in range(shape.dp)), f"ep {stage}"
        sent = tuple(int(1e6 * share) for share in tokens)
        there = Op("all_to_allv", 10.0, group=name, ranks=ranks, sizes=sent, size=int(2e6 * tokens[replica]))
        back = replace(there, sizes=(sent[replica],) * shape.dp, size=sum(sent))
        made[rank] = [
            part
            for op in ops
            for part in (
                (
                    replace(op, took=0.4 * op.took),
                    there,
                    replace(op, took=0.6 * op.took * tokens[replica]),
                    back,
                )
                if op.kind in ("F", "B")
                else (op,)
            )
        ]
    return made


@pytest.mark.parametrize("tokens", [(0.4, 1.6), (1.0, 1.0), (0.0, 2.0)])
def test_experts_have_their_bytes_per_peer(tmp_path: Path, tokens: tuple[float, float]) -> None:
    """Each pass sends tokens there, by the expert, and back, as much to each as the expert got from it."""
    shape = Shape(2, 2, 1, 4)
    style = Style(described=described(shape, {**TITAN, "ep": "mesh_ep"}))
    found, _ = analysed(tmp_path, with_experts(pipeline("gpipe", shape), shape, tokens), style)
    assert found.mesh is not None
    groups = [group for group in found.mesh.groups if group.dimension == "expert"]
    assert [group.ranks for group in groups] == [[0, 1], [2, 3]]
    expected = [[2 * 4 * 1e6 * (to + own) for to in tokens] for own in tokens]
    for group in groups:
        assert group.bytes_to is not None
        assert np.array(group.bytes_to) == pytest.approx(np.array(expected))
    assert all(group.bytes_to is None for group in found.mesh.groups if group.dimension != "expert")
    text = run_text(found)
    table = text[text.index("group of all-to-all") :].splitlines()
    share = f"{100 * (tokens[0] + 3 * tokens[1]) / 8:.1f} %"
    who = "all alike" if tokens[0] == tokens[1] else "rank 1"
    assert any(who in line and share in line and "50.0 %" in line for line in table)


def test_a_list_of_splits_that_is_cut_short_leaves_its_group_alone_unknown(tmp_path: Path) -> None:
    shape = Shape(2, 2, 1, 4)
    program = with_experts(pipeline("gpipe", shape), shape, (0.4, 1.6))
    files = write(tmp_path, simulate(program, STEPS), Style(described=described(shape, TITAN)))
    text = files[3].read_text(encoding="utf-8")
    files[3].write_text(re.sub(r'("In split size": "\[\d+, )\d+', r"\1...", text), encoding="utf-8")
    found = analyze_traces(files)
    assert found.mesh is not None
    experts = [group for group in found.mesh.groups if group.dimension == "expert"]
    assert [(group.ranks, group.bytes_to is None) for group in experts] == [([0, 1], False), ([2, 3], True)]
    assert run_text(found).count(" 50.0 %\n") == 1


@pytest.mark.parametrize("tokens", [(0.4, 1.6), (1.0, 1.0)])
def test_experts_of_a_pipeline_gain_what_an_even_load_gains(
    tmp_path: Path, tokens: tuple[float, float]
) -> None:
    """The busy experts' ranks are a whole replica, but no replica has more data."""
    shape = Shape(2, 2, 1)
    program = pipeline("1f1b", shape)
    style = Style(described=described(shape, {**TITAN, "ep": "mesh_ep"}))
    found, length = analysed(tmp_path, with_experts(program, shape, tokens), style)
    if tokens == (1.0, 1.0):
        assert found.verdict.kind == "healthy"
        return
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [1, 3])
    first = found.findings[0]
    assert first.sub_cause == "uneven_experts"
    assert first.estimated_speedup is not None
    even = without(with_experts(program, shape, (1.0, 1.0)))
    assert first.estimated_speedup.expected == pytest.approx(length / even, rel=0.1)


@pytest.mark.parametrize("words", [{"cp": "CONTEXT_PARALLEL_GROUP"}, {}])
@pytest.mark.parametrize("size", [2, 4])
def test_a_ring_of_context_parallelism_is_no_pipeline(
    tmp_path: Path, size: int, words: dict[str, str]
) -> None:
    style = Style(described=words)
    clean, _ = analysed(tmp_path / "a", ring(size), style)
    assert clean.verdict.kind == "healthy"
    assert clean.mesh is not None
    assert clean.mesh.schedule is None
    assert ("sequence", list(range(size))) in [(one.dimension, one.ranks) for one in clean.mesh.groups]
    late, length = analysed(tmp_path / "b", ring(size, lambda rank: SLOW if rank == 1 else 1.0), style)
    assert (late.verdict.kind, late.verdict.ranks) == ("straggler", [1])
    speedup = late.findings[0].estimated_speedup
    assert speedup is not None
    assert speedup.expected == pytest.approx(length / without(ring(size)), rel=0.1)


def test_the_slow_link_of_a_ring_is_named(tmp_path: Path) -> None:
    made = ring(4, link=lambda one, other: 8.0 if (one, other) == (0, 1) else 1.0)
    found, _ = analysed(tmp_path, made, Style())
    assert (found.verdict.kind, found.verdict.ranks) == ("communication", [0, 1])
    assert found.findings[0].sub_cause == "slow_link"


@pytest.mark.parametrize("config", [True, False])
def test_groups_are_described_by_the_configuration_where_calls_only_number_them(
    tmp_path: Path, config: bool
) -> None:
    """Nothing but the description tells the tensor groups of an only replica from data groups."""
    shape = Shape(2, 1, 2, 4)
    style = Style(described=described(shape, MEGATRON), numbered=True, config=config)
    found, _ = analysed(tmp_path, pipeline("1f1b", shape), style)
    assert found.mesh is not None
    dimensions = {tuple(group.ranks): group.dimension for group in found.mesh.groups}
    assert dimensions[0, 2] == dimensions[1, 3] == "pipeline"
    assert (dimensions[0, 1], dimensions[2, 3]) == (
        ("tensor", "tensor") if config else ("unknown", "unknown")
    )


@pytest.mark.parametrize("slow", [True, False])
def test_a_ring_within_the_stages_of_a_pipeline_leaves_the_pipeline_as_it_is(
    tmp_path: Path, slow: bool
) -> None:
    """The two ranks of a stage pass keys and values to each other in each pass. No group is described."""
    shape = Shape(2, 2, 1, 4)
    made: dict[int, Sequence[Op]] = {}
    for rank, ops in pipeline("1f1b", shape, slow_at(None, 1, None) if slow else equal).items():
        stage, replica = divmod(rank, shape.dp)
        peer = shape.rank(stage, 1 - replica, 0)
        hop = Op(
            "batch",
            group=f"cp {stage}",
            calls=tuple(Op(kind, 20.0, peer, f"cp {stage}") for kind in ("send", "recv")),
        )
        halves = {op: replace(op, took=op.took / 2) for op in ops}
        made[rank] = [
            part for op in ops for part in ((halves[op], hop, halves[op]) if op.kind in ("F", "B") else (op,))
        ]
    found, _ = analysed(tmp_path, made, Style())
    assert found.mesh is not None
    assert (found.mesh.schedule, found.mesh.microbatches) == ("1f1b", 4)
    assert [stage.ranks for stage in found.mesh.stages] == [[0, 1], [2, 3]]
    assert (found.verdict.kind, found.verdict.ranks) == (("straggler", [2, 3]) if slow else ("healthy", []))
