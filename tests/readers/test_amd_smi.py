"""Tables of amd-smi: names of several versions, missing values, and what is no measured 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.readers.sample_files import find_samples
from aorta.readers.sample_tables import frame_of

OLD = (
    "timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_util,gfx_clock,vram_used,vram_total"
)
NEW = "timestamp,gpu,xcp,power_usage,hotspot_temperature,gfx,gfx_clock,mem,used_vram,total_vram"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (OLD, "{at},3,500,70,60,97,1700,1000,196592"),
        (NEW, "{at},3,0,500 W,70 °C,97 %,1700 MHz,30,1000 MB,196592 MB"),
    ],
)
def test_samples_by_names_of_several_versions(tmp_path: Path, header: str, line: str) -> None:
    path = written(tmp_path / "amd.csv", header, *(line.format(at=1_790_000_000 + s) for s in range(2)))
    (found,), problems = find_samples([path])
    assert problems == ()
    assert found.zoneless is False
    table = frame_of(found.table)
    assert table["wall_ns"].tolist() == [1_790_000_000 * 10**9, 1_790_000_001 * 10**9]
    columns = ["gpu_index", "utilization_gpu", "power_draw_w", "memory_used_mb", "memory_total_mb"]
    known = [name for name in columns if name in table]
    assert table[known].iloc[0].tolist() == [3, 97, 500, 1000, 196592][-len(known) :]


def test_a_second_die_without_a_sensor_has_no_power_and_an_idle_gpu_has_a_use_of_0(tmp_path: Path) -> None:
    lines = [
        f"{1_790_000_000 + s},{gpu},{500 * (1 - gpu)},70,60,0,1700,0,65536" for s in (0, 1) for gpu in (0, 1)
    ]
    (found,), _ = find_samples([written(tmp_path / "amd.csv", OLD, *lines)])
    assert frame_of(found.table)["power_draw_w"].isna().tolist() == [False, True] * 2
    assert frame_of(found.table)["utilization_gpu"].tolist() == [0.0] * 4
    assert frame_of(found.table)["memory_used_mb"].tolist() == [0.0] * 4


def test_lines_that_are_no_samples_are_counted_and_a_repeated_header_is_none(tmp_path: Path) -> None:
    good = "1790000000,0,500,70,60,97,1700,1000,196592"
    path = written(tmp_path / "amd.csv", OLD, good, OLD, "1790000001,0,500", "N/A,0,5,7,6,9,1,1,1", good)
    (found,), problems = find_samples([path])
    assert len(frame_of(found.table)) == 2
    assert [item.reason for item in problems] == ["2 of its samples are cut off or have no time"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (OLD.removeprefix("timestamp,"), "a table from amd-smi without times"),
    ],
)
def test_tables_without_times_say_so(tmp_path: Path, header: str, reason: str) -> None:
    found, (problem,) = find_samples([written(tmp_path / "smi.csv", header, "0,97,500,70,60,97,1,1,1")])
    assert found == ()
    assert reason in problem.reason
