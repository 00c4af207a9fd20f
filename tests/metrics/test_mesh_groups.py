"""Groups of a mesh: the dimension that names or calls tell, time and bytes, and a slow one among equals."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from aorta.artefacts.mesh import MeshGroup
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import CollectiveId, StepRange, StepRanges
from aorta.metrics.collectives import Matched
from aorta.metrics.dimensions import dimension_of
from aorta.metrics.expert_load import recorded_load
from aorta.metrics.mesh_groups import dimensions_of, groups_of, shown_mesh, slow_group
from tests.support.steps import step

MS = 1_000_000


@pytest.mark.parametrize(
    ("name", "dimension"),
    [
        ("mesh_tp:3", "tensor"),
        ("mesh_dp_shard:4", "data"),
        ("mesh_dp_shard_cp:5", "data"),
        ("mesh_pp:1", "pipeline"),
        ("mesh_cp:2", "sequence"),
        ("mesh_ep:2", "expert"),
        ("TENSOR_MODEL_PARALLEL_GROUP:9", "tensor"),
        ("PIPELINE_MODEL_PARALLEL_GROUP:9", "pipeline"),
        ("DATA_PARALLEL_GROUP_WITH_CP:9", "data"),
        ("CONTEXT_PARALLEL_GROUP:9", "sequence"),
        ("EXPERT_MODEL_PARALLEL_GROUP:9", "expert"),
        ("EXPERT_DATA_PARALLEL_GROUP:9", "data"),
        ("0", None),
        ("steps", None),
    ],
)
def test_a_name_says_the_dimension(name: str, dimension: str | None) -> None:
    assert dimension_of(name) == dimension


def call(step: int, group: str, op: str, ranks: tuple[int, ...], took: int, size: int | None) -> Matched:
    """The last rank comes 5 ms after the others; then it takes `took` ms."""
    entry = np.array([10 * MS] * (len(ranks) - 1) + [15 * MS], dtype=np.int64)
    return Matched(
        key=(step, group, 0),
        ranks=ranks,
        entry=entry,
        end=np.full(len(ranks), (15 + took) * MS, dtype=np.int64),
        op=op,
        bytes=size,
    )


def test_time_is_the_transfer_without_the_wait() -> None:
    calls = [call(step, "mesh_tp:1", "all_reduce", (0, 1), 2, 1000) for step in range(4)]
    calls += [call(step, "mesh_dp:2", "all_reduce", (0, 2), 6, None) for step in range(4)]
    found = groups_of(calls, steps=4)
    told = [(one.dimension, one.ranks, one.ms_per_step, one.bytes_per_step) for one in found]
    assert told == [("data", [0, 2], 6.0, None), ("tensor", [0, 1], 2.0, 1000.0)]
    assert [(one.dimension, one.ms_per_step) for one in dimensions_of(found)] == [
        ("data", 6.0),
        ("tensor", 2.0),
    ]


def test_without_names_the_calls_tell() -> None:
    calls = [
        call(0, "1", "all_reduce", (0, 1), 1, 10),
        call(0, "2", "all_reduce", (2, 3), 1, 10),
        call(0, "3", "all_reduce", (0, 2), 1, 10),
        call(0, "4", "all_reduce", (1, 3), 1, 10),
        call(0, "5 0>2", "send_recv", (0, 2), 1, 10),
        call(0, "6", "all_to_all", (0, 1, 2, 3), 1, 10),
    ]
    found = {one.name: one.dimension for one in groups_of(calls, steps=1)}
    assert found == {
        "1": "tensor", "2": "tensor", "3": "data", "4": "data", "5 sends": "pipeline", "6": "expert",
    }  # fmt: skip


def group(name: str, ranks: list[int], ms: float, size: float | None = 100.0) -> MeshGroup:
    return MeshGroup(name=name, dimension="tensor", ranks=ranks, ms_per_step=ms, bytes_per_step=size)


def test_a_slow_group_is_told_by_others_of_its_kind_with_as_many_bytes() -> None:
    fast, slow, busy = group("a", [0, 1], 2.0), group("b", [2, 3], 9.0), group("c", [4, 5], 9.0, 500.0)
    assert slow_group([fast, slow]) == (slow, 4.5)
    assert slow_group([fast, busy]) is None
    assert slow_group([fast, group("b", [2, 3], 3.9)]) is None
    assert slow_group([slow]) is None


def test_the_load_of_experts_is_their_bytes_per_step() -> None:
    def rank(bytes_: int) -> StepColumns:
        named = {"op": "all_to_all", "group": "0", "seq": 1, "bytes": bytes_}
        one = StepRange(
            stream="alltoall", tag="program", start_ms=1.0, end_ms=2.0, metadata=CollectiveId(**named)
        )
        steps = [step(number, (number * 10, number * 10 + 9)) for number in range(3)]
        return StepColumns.of(
            [msgspec.structs.replace(item, profile=StepRanges(ranges=[one, one])) for item in steps]
        )

    assert recorded_load({0: rank(50), 1: rank(400)}) == {0: 100.0, 1: 800.0}
    assert recorded_load({0: rank(50), 1: rank(0)}) == {}


@pytest.mark.parametrize(
    ("sent", "shown"), [(None, False), ([[0.0, 0.0], [0.0, 0.0]], True), ([[1.0, 2.0], [3.0, 4.0]], True)]
)
def test_one_group_of_all_ranks_is_shown_where_sizes_per_peer_are_known(
    sent: list[list[float]] | None, shown: bool
) -> None:
    group = MeshGroup(name="0", dimension="unknown", ranks=[0, 1], bytes_to=sent)
    mesh = shown_mesh(None, [group])
    assert (mesh is not None and mesh.groups == [group]) is shown
