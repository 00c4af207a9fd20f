"""Nodes that swap during the steps: pressure on their memory, and the cause of what its ranks lose by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.config.schema import Config
from aorta.config.thresholds import Thresholds
from aorta.diagnosis.findings.memory_pressure import SWAPPED, USED
from tests.support.verdicts import finding, made, measured

GIB = 1 << 30
SLOW_NODE = {"nodes": 2, "extra_host_ms": {2: 60.0, 3: 60.0}}


def test_a_node_that_swaps_is_memory_pressure_there_alone(tmp_path: Path) -> None:
    """5 MB/s in and 2.5 out, of the job, and nobody slower for it: pressure that takes no time."""
    found = made(tmp_path, nodes=2, swap_mb_per_s={1: (5.0, 2.5)}, job_swap_used_bytes=GIB)
    cause = finding(found, "memory_pressure")
    assert cause is not None
    assert (cause.nodes, cause.ranks, cause.unit, cause.threshold) == (["node2"], [2, 3], SWAPPED, 4.0)
    assert cause.value == pytest.approx(7.5)
    assert cause.sub_cause == "swapping"
    assert cause.sub_cause_text is not None
    assert "on node2 5.0 MB/s are read back and 2.5 MB/s are written out" in cause.sub_cause_text
    assert "up to 1.00 GiB of the job are in swap" in cause.sub_cause_text
    assert cause.evidence["swap_in_mb_per_s"] == pytest.approx(5.0)
    assert cause.estimated_speedup is None
    assert any("on node2" in action for action in cause.actions)
    assert found.verdict.statement.startswith(
        "Memory pressure: node2 moves pages between memory and swap during the steps, 7.5 MB/s."
    )


@pytest.mark.parametrize(
    ("rates", "own"),
    [
        ({}, None),
        ({0: (2.0, 1.9)}, GIB),
        ({0: (50.0, 50.0)}, 0),
        (None, GIB),
    ],
    ids=["no swapping", "little of it", "of other programs", "not sampled"],
)
def test_where_the_job_does_not_swap_there_is_no_finding(
    tmp_path: Path, rates: dict[int, tuple[float, float]] | None, own: int | None
) -> None:
    found = made(tmp_path, swap_mb_per_s=rates, job_swap_used_bytes=own)
    assert found.verdict.kind == "healthy"
    assert measured(found, "memory_pressure").unit == USED


def test_whose_pages_move_is_said_not_to_be_known_where_no_cgroup_tells(tmp_path: Path) -> None:
    cause = finding(made(tmp_path, swap_mb_per_s={0: (9.0, 0.0)}), "memory_pressure")
    assert cause is not None
    assert (cause.ranks, cause.nodes) == ([], ["node1"])
    assert "it was not measured if these pages belong to the job" in str(cause.sub_cause_text)
    assert "job_swap_bytes" not in cause.evidence


@pytest.mark.parametrize("stall", [None, {1: 0.3}], ids=["not counted", "counted"])
def test_late_ranks_of_a_node_that_waits_for_swap_are_its_symptom(
    tmp_path: Path, stall: dict[int, float] | None
) -> None:
    found = made(tmp_path, **SLOW_NODE, swap_mb_per_s={1: (20.0, 0.0)}, memory_stall_share=stall)
    assert (found.verdict.kind, found.verdict.ranks) == ("memory_pressure", [2, 3])
    late = finding(found, "straggler")
    assert late is not None
    assert late.symptom_of == "memory_pressure"
    # Two of four ranks wait for the others' 60 ms, less what hidden communication takes of it.
    assert found.findings[0].lost_ms_per_step == late.lost_ms_per_step == pytest.approx(26.0)
    assert late.cause.endswith("ranks 2, 3, which spend more time on host work")
    waited = "at least one process waited for memory in 30 % of the time"
    assert (waited in str(found.findings[0].sub_cause_text)) is (stall is not None)


@pytest.mark.parametrize(
    ("rates", "stall"),
    [({0: (20.0, 0.0)}, None), ({1: (0.0, 20.0)}, None), ({1: (20.0, 0.0)}, {1: 0.0})],
    ids=["the other node", "out alone", "nobody waits"],
)
def test_late_ranks_stay_the_cause_where_swap_does_not_hold_them_up(
    tmp_path: Path, rates: dict[int, tuple[float, float]], stall: dict[int, float] | None
) -> None:
    found = made(tmp_path, **SLOW_NODE, swap_mb_per_s=rates, memory_stall_share=stall)
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [2, 3])
    cause = finding(found, "memory_pressure")
    assert cause is not None
    assert cause.symptom_of is None


def test_slow_loaders_of_nodes_that_all_wait_for_swap_are_its_symptom(tmp_path: Path) -> None:
    rates = {0: (9.0, 1.0), 1: (12.0, 0.0)}
    found = made(tmp_path, nodes=2, data_wait_ms=60.0, swap_mb_per_s=rates)
    assert (found.verdict.kind, found.verdict.ranks) == ("memory_pressure", [])
    loading = finding(found, "data_loading")
    assert loading is not None
    assert loading.symptom_of == "memory_pressure"
    alone = made(tmp_path / "one", nodes=2, data_wait_ms=60.0, swap_mb_per_s={0: (9.0, 0.0)})
    assert alone.verdict.kind == "data_loading"


def test_a_full_host_that_swaps_has_its_fullness_as_value_and_swapping_as_cause(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        swap_mb_per_s={0: (9.0, 0.0)},
        job_memory_used_bytes=95 << 20,
        job_memory_limit_bytes=100 << 20,
    )
    cause = finding(found, "memory_pressure")
    assert cause is not None
    assert (cause.value, cause.unit, cause.sub_cause) == (95.0, USED, "swapping")


def test_the_threshold_is_the_configurations(tmp_path: Path) -> None:
    config = Config(thresholds=Thresholds(swap_mb_per_s=10.0))
    found = made(tmp_path, swap_mb_per_s={0: (9.0, 0.0)}, config=config)
    assert found.verdict.kind == "healthy"
    assert found.thresholds["swap_mb_per_s"] == 10.0
