"""Hosts of a pipeline's ranks that work between its operations, which the replay of operations leaves out."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from aorta.artefacts.mesh import Mesh
from aorta.diagnosis.rank import RankCosts
from aorta.metrics.mesh import MeshFacts
from tests.support.findings import RECORDS, context, measure

MESH = MeshFacts(
    Mesh(groups=[], stages=[], schedule="GPipe", microbatches=4, bubble=None), None, "no operations"
)


def costs(host_ms: tuple[float, float], waits_ms: tuple[float, float]) -> list[RankCosts]:
    """Two ranks of 100 ms per step; each waits for the other's host."""
    return [
        RankCosts(
            rank, 100.0, 40.0, 0.0, host_ms[rank], 0.0, waits_ms[rank], {(1 - rank, "host"): waits_ms[rank]}
        )
        for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("host_ms", "waits_ms", "value"),
    [
        ((2.0, 32.0), (35.0, 1.0), 30.0),  # 32 - 2 of the 35 ms
        ((2.0, 52.0), (35.0, 1.0), 35.0),
        ((2.0, 17.0), (15.0, 1.0), None),  # below the threshold of 20 %
        ((10.0, 11.0), (25.0, 25.0), None),  # stages that wait for each other's hosts in turn
        ((2.0, 12.0), (35.0, 1.0), None),  # 10 of 35 ms are not most of the wait
    ],
)
def test_a_host_that_works_longer_than_the_others_is_waited_for(
    host_ms: tuple[float, float], waits_ms: tuple[float, float], value: float | None
) -> None:
    answer = measure("straggler", context(mesh=MESH, costs=costs(host_ms, waits_ms)), RECORDS)
    if value is None:
        assert answer.finding is None
        return
    assert answer.measured.value == pytest.approx(value)
    assert answer.finding is not None
    assert answer.finding.ranks == [1]
    speedup = answer.finding.estimated_speedup
    assert speedup is not None
    assert (speedup.low, speedup.high) == pytest.approx((100 / (100 - value / 2), 100 / (100 - value)))


@pytest.mark.parametrize(("steps", "fires"), [(9, False), (10, True)])
def test_few_steps_name_no_host(steps: int, fires: bool) -> None:
    seen = context(mesh=MESH, costs=costs((2.0, 32.0), (35.0, 1.0)))
    few = msgspec.structs.replace(seen.steps.breakdown, steps=steps)
    answer = measure("straggler", replace(seen, steps=replace(seen.steps, breakdown=few)), RECORDS)
    assert (answer.finding is not None) is fires
