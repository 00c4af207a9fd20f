"""The vendors' programs through stand-ins on PATH that behave like them, hanging and failing included."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from aorta.monitors.devices import Device, SourceError
from aorta.monitors.tools import (
    MOST_FAILURES,
    list_amd_smi,
    list_nvidia_smi,
    list_rocm_smi,
    nvidia_instances,
    open_amd_smi,
    open_nvidia_smi,
    open_rocm_smi,
)

NVIDIA_SMI = """\
import os, sys, time
if os.environ.get("SMI_MODE_FILE") and (mode := open(os.environ["SMI_MODE_FILE"]).read()):
    if mode == "hang":
        time.sleep(1000)
    print("Unable to determine the device handle for GPU0: GPU is lost.")
    sys.exit(15)
gpus = {
    "GPU-aaaa-1": dict(index="0", name="NVIDIA A100-SXM4-40GB"),
    "GPU-bbbb-2": dict(index="1", name="NVIDIA H100L-2-24C"),
}
values = {
    "utilization.gpu": ("%", "[N/A]"), "utilization.memory": ("%", "0 %"), "memory.used": ("MiB", "12 MiB"),
    "memory.total": ("MiB", "24576 MiB"), "temperature.gpu": ("", "30"), "power.draw": ("W", "71.5 W"),
    "clocks.sm": ("MHz", "345 MHz"),
    os.environ.get("SMI_REASONS", "clocks_event_reasons.active"): ("", "0x01"),
}
if "-L" in sys.argv:
    print(os.environ.get("SMI_LISTING", ""))
    sys.exit(0)
query = next(a for a in sys.argv if a.startswith("--query-gpu=")).partition("=")[2].split(",")
only = next((a for a in sys.argv if a.startswith("--id=")), "").partition("=")[2]
for name in query:
    if name not in values and name not in ("index", "uuid", "name"):
        print(f'Field "{name}" is not a valid field to query.')
        sys.exit(2)
units = {name: f" [{unit}]" for name, (unit, _) in values.items() if unit}
print(", ".join(name + units.get(name, "") for name in query))
for uuid, gpu in gpus.items():
    if not only or uuid in only.split(","):
        cells = dict(gpu, uuid=uuid)
        print(", ".join(cells[name] if name in cells else values[name][1] for name in query))
"""


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Put a program into an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, source: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(0o755)

    return put


def results(source, count=1, limit_s=20.0):
    """Readings of the next `count` calls that brought any."""
    found, end = [], time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < end, f"nothing came: {source.errors}"
        source._next_ns = 0  # the pause between calls is tested on its own
        if readings := source.sample():
            found.append(readings)
        time.sleep(0.005)
    source.close()
    return found


def test_nvidia_smi_gives_the_jobs_gpu_as_gpu_0(on_path):
    on_path("nvidia-smi", NVIDIA_SMI)
    source = open_nvidia_smi(["bbbb-2"], {})
    before = time.monotonic_ns()
    ((reading,),) = results(source)
    gpu = reading.sample
    assert (reading.gpu_id, gpu.index, gpu.uuid, gpu.name) == (0, 1, "GPU-bbbb-2", "NVIDIA H100L-2-24C")
    assert (gpu.utilization_gpu, gpu.utilization_memory) == (None, 0)
    assert (gpu.memory_total_mb, gpu.power_draw_w, gpu.clock_event_reasons) == (24576, 71.5, 1)
    assert (
        before <= reading.mono_ns <= time.monotonic_ns()
    )  # the start of the call, not when it was looked at
    assert source.errors == {}


@pytest.mark.parametrize(
    ("reasons", "found"), [("clocks_throttle_reasons.active", 1), ("no_such_reasons", None)]
)
def test_older_and_oldest_drivers_have_other_columns(on_path, monkeypatch, reasons, found):
    on_path("nvidia-smi", NVIDIA_SMI)
    monkeypatch.setenv("SMI_REASONS", reasons)
    ((first, second),) = results(open_nvidia_smi([], {}))
    assert (first.gpu_id, second.gpu_id) == (0, 1)
    assert (first.sample.clock_event_reasons, first.sample.power_draw_w) == (found, 71.5)


def mode(tmp_path: Path, monkeypatch, text: str) -> Path:
    path = tmp_path / "mode"
    path.write_text(text)
    monkeypatch.setenv("SMI_MODE_FILE", str(path))
    return path


def test_a_call_that_hangs_is_never_waited_for_and_is_killed(on_path, tmp_path, monkeypatch):
    on_path("nvidia-smi", NVIDIA_SMI)
    switch = mode(tmp_path, monkeypatch, "")
    source = open_nvidia_smi([], {}, timeout_s=5)
    source.timeout_s = 0.2
    switch.write_text("hang")
    assert source.sample() == []  # started, not waited for
    pid = source._call._child.pid
    ((first, second),) = results(source)
    assert (first.sample.uuid, first.sample.memory_used_mb) == ("GPU-aaaa-1", None)
    assert second.sample.uuid == "GPU-bbbb-2"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    ((reason, count),) = source.errors.items()
    assert "gave no answer within 0.2 s" in reason
    assert count == 1


def test_a_source_that_recovers_goes_on(on_path, tmp_path, monkeypatch):
    on_path("nvidia-smi", NVIDIA_SMI)
    switch = mode(tmp_path, monkeypatch, "")
    source = open_nvidia_smi(["GPU-aaaa-1"], {})
    switch.write_text("lost")
    ((empty,),) = results(source)
    switch.write_text("")
    ((full,),) = results(source)
    assert (empty.sample.memory_used_mb, full.sample.memory_used_mb) == (None, 12)
    ((reason, count),) = source.errors.items()
    assert reason.endswith("exited 15: Unable to determine the device handle for GPU0: GPU is lost.")
    assert count == 1


def test_a_source_that_fails_again_and_again_is_given_up(on_path, tmp_path, monkeypatch):
    on_path("nvidia-smi", NVIDIA_SMI)
    switch = mode(tmp_path, monkeypatch, "")
    source = open_nvidia_smi(["GPU-aaaa-1"], {})
    switch.write_text("lost")
    results(source, MOST_FAILURES)
    assert sum(source.errors.values()) == MOST_FAILURES
    assert [reason for reason in source.errors if "no further attempts" in reason]
    switch.write_text("")
    source._next_ns = 0
    ((reading), *_) = source.sample()
    assert reading.sample.memory_used_mb is None  # rows go on, empty
    assert source._call is None


def test_calls_are_as_rare_as_their_cost_demands(on_path, monkeypatch):
    on_path("nvidia-smi", NVIDIA_SMI)
    source = open_nvidia_smi([], {})
    costs = iter([1.0, 1.5])  # seconds of CPU time of all children before and after the call
    monkeypatch.setattr("aorta.monitors.tools._children_cpu_s", lambda: next(costs))
    source.sample()
    started = source._call.started_ns
    while not source.sample():
        time.sleep(0.005)
    assert source._next_ns - started == 0.5 / 0.05 * 10**9
    assert source._call is None
    assert source.sample() == []


@pytest.mark.parametrize("opener", [open_nvidia_smi, open_amd_smi, open_rocm_smi])
def test_a_program_that_is_not_there(on_path, opener):
    with pytest.raises(SourceError, match="smi is not on PATH"):
        opener([], {})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print('No devices were found')", "not CSV of nvidia-smi"),
        ("import sys; print('NVIDIA-SMI has failed'); sys.exit(9)", "exited 9: NVIDIA-SMI has failed"),
        ("import sys; sys.exit(9)", "exited 9: no message"),
        ("import time; time.sleep(100)", "no answer within 0.2 s"),
    ],
)
def test_an_nvidia_smi_that_finds_nothing_says_why(on_path, source, reason):
    on_path("nvidia-smi", source)
    with pytest.raises(SourceError, match=reason):
        open_nvidia_smi([], {}, timeout_s=2 if "sleep" not in source else 0.2)


def test_a_program_that_cannot_be_started(on_path, tmp_path):
    on_path("nvidia-smi", "")
    (tmp_path / "bin/nvidia-smi").write_text("#!/nonexistent/interpreter\n")
    with pytest.raises(SourceError, match="nvidia-smi: No such file"):
        open_nvidia_smi([], {})


AMD_SMI = """\
import json, sys
if sys.argv[1] == "list":
    tree = [{"gpu": 0, "bdf": "0000:01:00.0", "uuid": "aa"}, {"gpu": 1, "bdf": "0000:02:00.0", "uuid": "bb"}]
elif sys.argv[1] == "static":
    tree = {"gpu_data": [{"gpu": i, "asic": {"market_name": f"MI300X {i}"}} for i in (0, 1)]}
    tree["gpu_data"][0]["vram"] = {"size": {"value": 2, "unit": "MB"}}
else:
    tree = [{"gpu": i, "usage": {"gfx_activity": {"value": 0, "unit": "%"}, "umc_activity": "N/A"},
             "padding": "x" * 100_000} for i in (0, 1)]
print(json.dumps(tree))
"""


def test_amd_smi_joins_identity_and_samples_on_the_index(on_path):
    on_path("amd-smi", AMD_SMI)  # its output is longer than a pipe holds
    ((reading,),) = results(open_amd_smi([], {"ROCR_VISIBLE_DEVICES": "1"}))
    gpu = reading.sample
    assert (reading.gpu_id, gpu.index, gpu.uuid, gpu.name) == (0, 1, "bb", "MI300X 1")
    assert (gpu.utilization_gpu, gpu.utilization_memory) == (0, None)


def test_rocm_smi_by_card_where_there_is_no_unique_id(on_path):
    cards = {
        f"card{i}": {"GPU use (%)": str(i), "Average Graphics Package Power (W)": "9.5"} for i in range(2)
    }
    on_path("rocm-smi", f"print('WARNING: deprecated'); print('''{json.dumps(cards)}''')")
    ((reading,),) = results(open_rocm_smi(["card1"], {}))
    assert (reading.gpu_id, reading.sample.utilization_gpu, reading.sample.power_draw_w) == (0, 1, 9.5)


def test_a_gpu_that_vanishes_from_the_answer_is_empty_and_counted(on_path, tmp_path, monkeypatch):
    listing = {"card0": {"GPU use (%)": "5"}, "card1": {"GPU use (%)": "6"}}
    path = tmp_path / "answer"
    path.write_text(json.dumps(listing))
    on_path("rocm-smi", f"print(open({str(path)!r}).read())")
    source = open_rocm_smi([], {})
    del listing["card1"]
    path.write_text(json.dumps(listing))
    ((first, second),) = results(source)
    assert (first.sample.utilization_gpu, second.sample.utilization_gpu) == (5, None)
    assert source.errors == {"rocm-smi has no sample of GPU 1": 1}


LISTING = """\
GPU 0: NVIDIA A100 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb-2)
  MIG 1g.5gb      Device 0: (UUID: MIG-x)
  MIG 1g.5gb      Device 1: (UUID: MIG-y)
"""


def test_nvidia_smi_lists_gpus_and_their_instances(on_path, monkeypatch):
    on_path("nvidia-smi", NVIDIA_SMI)
    monkeypatch.setenv("SMI_LISTING", LISTING)
    parts = (Device(1, "MIG-x", "MIG 1g.5gb"), Device(1, "MIG-y", "MIG 1g.5gb"))
    memory = 24576 << 20
    first = Device(0, "GPU-aaaa-1", "NVIDIA A100-SXM4-40GB", ("card0",), memory)
    second = Device(1, "GPU-bbbb-2", "NVIDIA H100L-2-24C", ("card1",), memory, parts)
    assert list_nvidia_smi() == [first, second]
    with pytest.raises(SourceError, match="does not sample MIG instances"):
        open_nvidia_smi(["MIG-y"], {})
    assert nvidia_instances("no listing") == {}


def test_amd_smi_lists_what_it_knows(on_path):
    on_path("amd-smi", AMD_SMI)
    first = Device(0, "aa", "MI300X 0", ("card0",), memory_total_bytes=2 << 20)
    assert list_amd_smi() == [first, Device(1, "bb", "MI300X 1", ("card1",))]


def test_rocm_smi_lists_in_card_order(on_path):
    cards = {
        "card10": {"Unique ID": "0xb", "Card series": "MI250", "VRAM Total Memory (B)": "9437184"},
        "card2": {"Unique ID": "N/A", "Card Series": "MI300X"},
        "system": {"Driver version": "6"},
    }
    on_path("rocm-smi", f"print('''{json.dumps(cards)}''')")
    second = Device(10, "0xb", "MI250", ("card10",), memory_total_bytes=9 << 20)
    assert list_rocm_smi() == [Device(2, None, "MI300X", ("card2",)), second]
