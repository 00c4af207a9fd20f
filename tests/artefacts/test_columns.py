"""One table of columns: writers and readers follow it."""

from __future__ import annotations

import pytest

from aorta.artefacts.columns import CPU, CPU_COLUMNS, EXACT, GPU, GPU_COLUMNS, NUMBERS, TEXT, cells, sampled
from aorta.artefacts.samples import GpuSample


def test_a_name_stands_for_one_thing_in_both_files():
    shared = set(GPU_COLUMNS) & set(CPU_COLUMNS)
    assert shared == {"timestamp", "hostname", "node_index", "wall_ns", "mono_ns"}
    assert len(set(GPU_COLUMNS)) == len(GPU)
    assert len(set(CPU_COLUMNS)) == len(CPU)
    assert {*TEXT, *EXACT, *NUMBERS} == {*GPU_COLUMNS, *CPU_COLUMNS}


def test_each_field_of_a_sample_has_a_column():
    assert {column.field for column in GPU if column.field} == set(GpuSample.__dataclass_fields__) - {
        "timestamp"
    }


def test_a_part_is_of_a_column_of_its_file():
    for columns in (GPU, CPU):
        names = {column.name for column in columns}
        assert {column.part_of for column in columns if column.part_of} <= names


def test_cells_come_in_the_order_of_the_columns_and_none_is_forgotten():
    values = {name: index for index, name in enumerate(reversed(GPU_COLUMNS))}
    assert cells(GPU, values) == list(reversed(range(len(GPU))))
    del values["energy_mj"]
    with pytest.raises(KeyError, match="energy_mj"):
        cells(GPU, values)
    with pytest.raises(KeyError, match="unknown"):
        cells(GPU, {**values, "energy_mj": 1, "unknown": 1})


def test_a_sample_keeps_what_it_does_not_know_apart_from_zero():
    found = sampled(GPU, GpuSample(index=1, utilization_gpu=0.0))
    assert (found["utilization_gpu"], found["power_draw_w"], found["gpu_id"]) == (0.0, None, 1)
