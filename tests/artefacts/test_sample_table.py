"""Samples as columns: which rows are of one thing, and tables that hold the same samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aorta.artefacts.sample_table import SampleTable, joined
from aorta.metrics.utilization import in_windows
from aorta.readers.sample_tables import frame_of

KEYS = ["hostname", "node_index", "gpu_uuid", "gpu_id"]


def table(*rows: tuple[str, float, int, float]) -> SampleTable:
    """Rows of host, GPU, time and use."""
    hosts, gpus, times, used = zip(*rows, strict=True)
    wall = np.array(times, dtype=np.int64)
    return SampleTable(
        {"node_index": np.zeros(len(rows), dtype=np.int64), "wall_ns": wall, "mono_ns": wall},
        {"gpu_id": np.array(gpus, dtype=np.float64), "utilization_gpu": np.array(used, dtype=np.float64)},
        {"hostname": list(hosts), "gpu_uuid": [""] * len(rows)},
    )


ROWS = (("b", 0.0, 5, 10.0), ("a", math.nan, 6, 20.0), ("a", 1.0, 7, 0.0), ("a", math.nan, 8, math.nan))


def test_groups_are_numbered_in_the_order_of_their_keys_and_none_comes_last() -> None:
    assert table(*ROWS).groups(KEYS).tolist() == [2, 1, 0, 1]
    assert table(*ROWS).groups(["hostname", "no such column"]).tolist() == [1, 0, 0, 0]


def test_a_sample_of_two_files_counts_once_and_samples_are_in_order() -> None:
    made = joined([table(ROWS[2], ROWS[1]), table(ROWS[1], ROWS[0])], [*KEYS, "wall_ns"])
    assert made.wall_ns.tolist() == [5, 6, 7]
    assert made.texts["hostname"] == ["b", "a", "a"]
    assert made.column("utilization_gpu").tolist() == [10.0, 20.0, 0.0]


def test_what_was_not_measured_is_no_number_and_a_measured_zero_is_one() -> None:
    known = table(*ROWS).column("utilization_gpu")
    assert np.isnan(known).tolist() == [False, False, False, True]
    assert known[2] == 0.0
    assert np.isnan(table(*ROWS).column("power_draw_w")).all()


@pytest.mark.parametrize("windows", [{"a": (0, 9)}, {"a": (7, 9), "b": (0, 6)}, {"c": (0, 9)}])
def test_series_are_those_of_the_table_of_a_run(windows: dict[str, tuple[int, int]]) -> None:
    def told(made: object) -> list[tuple[str, list[int], list[str], object]]:
        assert made is None or not isinstance(made, str)
        return [
            (item.host, item.wall_ns.tolist(), [str(x) for x in item.numbers("utilization_gpu")],
             item.first_text("gpu_uuid"))
            for item in in_windows(made, KEYS, windows)  # type: ignore[arg-type]
        ]  # fmt: skip

    assert told(table(*ROWS)) == told(frame_of(table(*ROWS)))
