"""Samples recognised by their first line, whatever the file is called."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS
from aorta.readers.sample_files import find_samples

NVIDIA = """timestamp, index, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB]
2026/11/27 22:22:37.975, 0, GPU-a, [N/A], 0 MiB, 81559 MiB
2026/11/27 22:22:38, 1, GPU-b, 0 %, 10 MiB, 81559 MiB
2026/11/27 22:22:39.0, 1, GPU-b, 7
, 1, GPU-b, 7 %, 10 MiB, 81559 MiB
"""


def test_nvidia_smi_times_are_kept_as_printed_and_absent_is_not_zero(tmp_path: Path) -> None:
    (tmp_path / "anything.csv").write_text(NVIDIA)
    (found,), problems = find_samples([tmp_path])
    assert (found.kind, found.zoneless) == ("gpu", True)
    assert list(found.table.columns) == list(GPU_COLUMNS)
    # 2026-11-27 is day 20,784 after 1970-01-01.
    midnight = 20_784 * 86_400
    second = midnight + 22 * 3600 + 22 * 60 + 37
    assert found.table["wall_ns"].tolist() == [second * 10**9 + 975_000_000, (second + 1) * 10**9]
    assert pd.isna(found.table["utilization_gpu"][0])
    assert found.table["utilization_gpu"][1] == 0
    assert [item.reason for item in problems] == ["2 of its samples are cut off or have no time"]


def test_monitors_own_files(tmp_path: Path) -> None:
    gpu = dict.fromkeys(GPU_COLUMNS, "") | {
        "hostname": "n1",
        "node_index": "0",
        "wall_ns": "5",
        "mono_ns": "6",
    }
    cpu = dict.fromkeys(CPU_COLUMNS, "") | {
        "hostname": "n1",
        "node_index": "0",
        "wall_ns": "7",
        "mono_ns": "8",
    }
    for name, row in (("g.csv", gpu), ("c.csv", cpu)):
        (tmp_path / name).write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    found, problems = find_samples([tmp_path / "g.csv", tmp_path / "c.csv"])
    assert [(item.kind, item.zoneless, item.table["wall_ns"].tolist()) for item in found] == [
        ("gpu", False, [5]),
        ("cpu", False, [7]),
    ]
    assert problems == ()


def test_other_csv_and_files_that_cannot_be_read_cost_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("Name,Calls\nk,1\n")
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "binary.csv").write_bytes(b"\0\xff\n")
    (tmp_path / "smi.csv").write_text(NVIDIA)
    found, problems = find_samples([tmp_path, tmp_path / "gone.csv"])
    assert [item.path.name for item in found] == ["smi.csv"]
    assert [item.file for item in problems] == [str(tmp_path / "smi.csv"), str(tmp_path / "gone.csv")]
