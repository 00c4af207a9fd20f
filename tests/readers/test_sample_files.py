"""Samples recognised by their first line, whatever the file is called."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS
from aorta.readers.sample_files import find_samples
from aorta.readers.sample_rows import in_table
from aorta.readers.sample_tables import frame_of

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
    assert list(frame_of(found.table).columns) == in_table(GPU_COLUMNS)
    # 2026-11-27 is day 20,784 after 1970-01-01.
    midnight = 20_784 * 86_400
    second = midnight + 22 * 3600 + 22 * 60 + 37
    assert frame_of(found.table)["wall_ns"].tolist() == [second * 10**9 + 975_000_000, (second + 1) * 10**9]
    assert pd.isna(frame_of(found.table)["utilization_gpu"][0])
    assert frame_of(found.table)["utilization_gpu"][1] == 0
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
    assert [(item.kind, item.zoneless, frame_of(item.table)["wall_ns"].tolist()) for item in found] == [
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_encoding_that_the_first_bytes_announce_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "smi.csv").write_bytes(NVIDIA.encode(encoding))
    (found,), _ = find_samples([tmp_path])
    assert len(frame_of(found.table)) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("2026/09/21 14:13:20.000, 0, GPU-00000000-0000, 97 %, 100 MiB\n", "without a header line"),
        ("0, GPU-00000000-0000, 97 %, 100 MiB\n", "without a header line"),
        ("# gpu pwr gtemp mtemp sm mem\n# Idx W C C % %\n 0 120 40 - 97 30\n", "dmon -o DT"),
        ("gpu,power_usage,hotspot_temperature,vram_used\n0,200,60,100\n", "aorta monitor"),
    ],
)
def test_samples_that_cannot_be_placed_are_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "smi.csv").write_text(content)
    found, (problem,) = find_samples([tmp_path])
    assert found == ()
    assert reason in problem.reason


def test_dmon_with_date_and_time(tmp_path: Path) -> None:
    text = "#Date       Time     gpu    pwr  gtemp  mtemp     sm    mem\n#YYYYMMDD HH:MM:SS Idx W C C % %\n"
    (tmp_path / "dmon.txt").write_text(
        text + " 20261127 22:22:37 1 120 40 - 97 30\n 20261127 22:22:38 1 0 40 - 0\n"
    )
    (found,), (problem,) = find_samples([tmp_path])
    (row,) = frame_of(found.table).to_dict("records")
    assert row["wall_ns"] == (20_784 * 86_400 + 22 * 3600 + 22 * 60 + 37) * 10**9
    assert (row["gpu_id"], row["power_draw_w"], row["utilization_gpu"], row["utilization_memory"]) == (
        1,
        120,
        97,
        30,
    )
    assert "1 of its samples are cut off" in problem.reason


def test_a_lost_gpu_is_named_and_costs_only_its_own_samples(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU2: 0000:8A:00.0: GPU is lost.  Reboot the system\n"
    (tmp_path / "smi.csv").write_text("\n".join(NVIDIA.splitlines()[:3]) + "\n" + lost * 2)
    (found,), (problem,) = find_samples([tmp_path])
    assert len(frame_of(found.table)) == 2
    assert problem.reason.startswith("2 lines of nvidia-smi itself, the first: Unable to determine")


@pytest.mark.parametrize(
    ("value", "kept"), [("100 %", 1), ("0 %", 1), ("14073748835532800 %", 0), ("101 %", 0)]
)
def test_a_share_that_cannot_be_is_a_gap(tmp_path: Path, value: str, kept: int) -> None:
    line = f"2026/11/27 22:22:38, 1, GPU-b, {value}, 10 MiB, 81559 MiB\n"
    (tmp_path / "smi.csv").write_text(NVIDIA.splitlines()[0] + "\n" + line)
    (found,), problems = find_samples([tmp_path])
    assert int(frame_of(found.table)["utilization_gpu"].notna().sum()) == kept
    assert ("1 values are out of range" in " ".join(item.reason for item in problems)) == (not kept)
