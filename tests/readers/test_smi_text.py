"""What rocm-smi, amd-smi and nvidia-smi print for people: read where times stand in it, else named."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.readers.sample_files import SampleFile, find_samples
from aorta.readers.sample_tables import frame_of

AT = 1_790_000_000
"""2026-09-21 14:13:20 UTC."""
SIX = """
====================== ROCm System Management Interface ======================
================================ Concise Info ================================
Device  Node  IDs              Temp        Power     Partitions    SCLK  MCLK  Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Comp)
==============================================================================
0       2     0x74a1,   28851  43.0°C  {watts}W    NPS1, SPX, 0  133Mhz  900Mhz  0%  auto  750.0W  12%  {use}%
1       3     0x74a1,   23018  37.0°C      N/A       NPS1, SPX, 0  134Mhz  900Mhz  0%  auto  0.0W  0%  0%
==============================================================================
============================ End of ROCm SMI Log =============================
"""
FIVE = """
====================== ROCm System Management Interface ======================
================================ Concise Info ================================
GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    43.0c           {watts}W  133Mhz  1600Mhz  0%   auto  300.0W   12%   {use}%
1    34.0c           N/A     134Mhz  1600Mhz  0%   auto  0.0W    0%   0%
==============================================================================
"""
LISTED = """
GPU[0]\t\t: Temperature (Sensor edge) (C): 43.0
GPU[0]\t\t: Average Graphics Package Power (W): {watts}
GPU[0]\t\t: GPU use (%): {use}
GPU[0]\t\t: GPU Memory Allocated (VRAM%): 12
GPU[1]\t\t: Average Graphics Package Power (W): 0.0
GPU[1]\t\t: GPU use (%): 0
"""
ROCM_JSON = (
    '{{"card0": {{"GPU use (%)": "{use}", "Average Graphics Package Power (W)": "{watts}"}}, '
    '"card1": {{"GPU use (%)": "0", "Average Graphics Package Power (W)": "N/A"}}}}\n'
)
ROCM_CSV = """device,GPU use (%),Average Graphics Package Power (W)
card0,{use},{watts}
card1,0,0.0
"""
AMD_TABLE = """GPU  POWER   GPU_T   MEM_T   GFX_CLK   GFX%   MEM%   ENC%   DEC%      VRAM_USAGE
  0  {watts} W   43 °C   50 °C  1278 MHz  {use} %    1 %    N/A    0 %    2.0/192.0 GB
  1    N/A   47 °C   38 °C  2105 MHz    0 %    0 %    N/A    0 %    1.7/192.0 GB
"""
NVIDIA_TABLE = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   43C    P0            {watts}W /  700W |    2048MiB /  81559MiB |     {use}%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    0 |
| N/A   43C    P0            N/A /  700W |       0MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
"""
BODIES = {
    "rocm6": SIX,
    "rocm5": FIVE,
    "rocm-listed": LISTED,
    "rocm-json": ROCM_JSON,
    "rocm-csv": ROCM_CSV,
    "amd-table": AMD_TABLE,
    "nvidia-table": NVIDIA_TABLE,
}
STAMPS = {
    "epoch": (str(AT), str(AT + 2), False),
    "utc": ("Mon Sep 21 14:13:20 UTC 2026", "Mon Sep 21 14:13:22 UTC 2026", False),
    "iso": ("2026-09-21T16:13:20+02:00", "== 2026-09-21T16:13:22+0200 ==", False),
    "local": ("Mon 21 Sep 2026 02:13:20 PM CEST", "Mon 21 Sep 2026 02:13:22 PM CEST", True),
    "plain": ("Mon Sep 21 14:13:20 2026       ", "Mon Sep 21 14:13:22 2026       ", True),
}


def read(path: Path, text: str) -> SampleFile:
    path.write_text(text)
    (found,), problems = find_samples([path])
    assert problems == ()
    return found


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("stamp", STAMPS)
def test_tables_with_a_time_above_them(tmp_path: Path, body: str, stamp: str) -> None:
    first, second, zoneless = STAMPS[stamp]
    text = (
        f"{first}\n{BODIES[body].format(watts=500, use=97)}{second}\n{BODIES[body].format(watts=100, use=0)}"
    )
    found = read(tmp_path / "smi.log", text)
    table = frame_of(found.table)
    assert found.zoneless is zoneless
    assert table["wall_ns"].tolist() == [(AT + s) * 10**9 for s in (0, 0, 2, 2)]
    assert table["gpu_id"].tolist() == [0, 1, 0, 1]
    # An idle GPU has a use of 0; a GPU without a sensor has no power.
    assert table["utilization_gpu"].tolist() == [97, 0, 0, 0]
    assert table["power_draw_w"].isna().tolist() == [False, True] * 2
    assert table["power_draw_w"].dropna().tolist() == [500, 100]


@pytest.mark.parametrize("body", BODIES)
def test_tables_without_a_time_are_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "smi.log").write_text(BODIES[body].format(watts=500, use=97))
    found, (problem,) = find_samples([tmp_path / "smi.log"])
    assert found == ()
    assert "prints no times, so its samples cannot be matched with steps" in problem.reason
    assert "date +%s" in problem.reason


def test_a_second_table_below_one_time_has_no_time_of_its_own(tmp_path: Path) -> None:
    body = FIVE.format(watts=500, use=97)
    (tmp_path / "smi.log").write_text(f"{AT}\n{body}{body}")
    (found,), (problem,) = find_samples([tmp_path / "smi.log"])
    assert len(frame_of(found.table)) == 2
    assert problem.reason == "2 of its samples are cut off or have no time"


def test_amd_smi_writes_times_into_its_table(tmp_path: Path) -> None:
    lines = [" TIMESTAMP  GPU  POWER   GPU_T   GFX_CLK   GFX%   MEM%      VRAM_USAGE"]
    lines += [f"{AT + s}    0  750 W   69 °C  1278 MHz  {97 * s} %    1 %    2.0/192.0 GB" for s in (0, 1)]
    found = read(tmp_path / "amd.txt", "'CTRL' + 'C' to stop watching output:\n" + "\n".join(lines) + "\n")
    table = frame_of(found.table)
    assert table["wall_ns"].tolist() == [AT * 10**9, (AT + 1) * 10**9]
    assert table["utilization_gpu"].tolist() == [0, 97]
    assert table["memory_used_mb"].tolist() == [2 * 1024] * 2
    assert table["memory_total_mb"].tolist() == [192 * 1024] * 2


@pytest.mark.parametrize(
    "entry",
    [
        '{{"timestamp": {at}, "gpu": 0, "power_usage": {{"value": 500, "unit": "W"}}, "gfx": {use}}}',
        '{{"timestamp": {at}, "gpu": 0, "usage": {{"gfx_activity": {{"value": {use}, "unit": "%"}}}}, '
        '"power": {{"socket_power": {{"value": 500, "unit": "W"}}}}}}',
    ],
)
def test_amd_smi_as_json(tmp_path: Path, entry: str) -> None:
    documents = [f"[{entry.format(at=AT + s, use=97 * s)}]" for s in (0, 1)]
    table = frame_of(read(tmp_path / "amd.json", "\n".join(documents)).table)
    assert table["wall_ns"].tolist() == [AT * 10**9, (AT + 1) * 10**9]
    assert table["utilization_gpu"].tolist() == [0, 97]
    assert table["power_draw_w"].tolist() == [500, 500]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("==============NVSMI LOG==============\n\nTimestamp : Mon Sep 21 14:13:20 2026\n", "nvidia-smi -q"),
        ("# gpu         pid  type    sm   mem   command\n    0  1  C  1  2  python\n", "nvidia-smi pmon"),
        ("#Entity   GPUTL   MCUTL\nID\nGPU 0     97      30\n", "dcgmi"),
        ("GPU: 0\n    USAGE:\n        GFX_ACTIVITY: 97 %\n", "amd-smi metric"),
    ],
)
def test_listings_that_are_not_read_are_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "out.txt").write_text(text)
    found, (problem,) = find_samples([tmp_path / "out.txt"])
    assert found == ()
    assert what in problem.reason
    assert "aorta monitor" in problem.reason


def test_a_file_with_a_header_alone_says_so(tmp_path: Path) -> None:
    (tmp_path / "smi.csv").write_text("timestamp, index, uuid, utilization.gpu [%]\n")
    found, (problem,) = find_samples([tmp_path / "smi.csv"])
    assert found == ()
    assert problem.reason == "it has a header for GPU samples, but no samples"


def test_dmon_as_csv_and_without_a_date(tmp_path: Path) -> None:
    line = "20260921, 14:13:20, 0, 500, 43, -, 97, 30\n"
    found = read(tmp_path / "a.csv", "#Date, Time, gpu, pwr, gtemp, mtemp, sm, mem\n" + line)
    table = frame_of(found.table)
    assert table["wall_ns"].tolist() == [AT * 10**9]
    assert table["utilization_gpu"].tolist() == [97]
    (tmp_path / "b.csv").write_text("#Time        gpu    pwr     sm\n14:13:20  0  500  97\n")
    _, (problem,) = find_samples([tmp_path / "b.csv"])
    assert "without a date cannot be matched" in problem.reason


def test_a_program_s_log_that_speaks_of_gpus_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("2026-09-21 14:13:20 step 5 GPU memory 12 GB\nGPU 0: H100\n")
    assert find_samples([tmp_path / "train.log"]) == ((), ())
