"""The whole sampler: in this process with stand-ins, and as the `aorta monitor` that a job starts."""

from __future__ import annotations

import csv
import resource
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS
from aorta.artefacts.io import read_json
from aorta.artefacts.records import MonitorStatus
from aorta.commands.monitor import command
from aorta.errors import RunError
from aorta.monitors.devices import SourceError
from aorta.monitors.gpu import open_source
from aorta.monitors.loop import SamplingOptions, iso, run
from aorta.monitors.vendor_library import LibrarySource, nvml_library
from tests.monitors.fakes import FakeNvml, NVMLError_GpuIsLost, NVMLError_NotSupported

GPUS = (("GPU-aaaa-1", "NVIDIA A100-SXM4-40GB"), ("GPU-bbbb-2", "NVIDIA H100, 80GB"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def sample(folder: Path, nvml: FakeNvml, **more) -> MonitorStatus:
    def fake(wanted, environment):
        return LibrarySource(nvml_library(nvml), wanted, environment).open()

    options = {
        "interval_s": 0.005,
        "node_index": 3,
        "duration_s": 0.03,
        "environment": {},
        "gpu_order": (fake,),
    }
    return run(SamplingOptions(output_dir=folder, **{**options, **more}))


def test_the_files_of_a_node(tmp_path):
    nvml = FakeNvml(*GPUS)
    status = sample(tmp_path / "node3", nvml)
    gpu, cpu = rows(tmp_path / "node3/gpu_monitor.csv"), rows(tmp_path / "node3/cpu_monitor.csv")
    assert tuple(gpu[0]) == tuple(GPU_COLUMNS)
    assert tuple(cpu[0]) == tuple(CPU_COLUMNS)
    assert len(cpu) == status.samples
    assert len(gpu) == 2 * status.samples
    assert status.samples + status.missed >= 0.03 / 0.005 + 1  # both ends; more when the last one was late
    assert (status.gpu_source, status.gpu_reason, status.stopped_by) == ("nvml", None, "end")
    assert read_json(tmp_path / "node3/monitor_status.json", MonitorStatus) == status
    for row in gpu + cpu:
        assert (row["hostname"], row["node_index"]) == (socket.gethostname(), "3")
        assert abs(datetime.fromisoformat(row["timestamp"]).timestamp() - int(row["wall_ns"]) / 1e9) < 0.0011
    assert [row["gpu_id"] for row in gpu[:2]] == ["0", "1"]
    assert (gpu[1]["gpu_uuid"], gpu[1]["gpu_name"]) == GPUS[1]
    assert (gpu[0]["power_draw_w"], gpu[0]["memory_used_mb"], gpu[0]["temperature"]) == ("83.527", "2", "41")
    assert cpu[0]["cpu_percent"] == ""
    times = [int(row["mono_ns"]) for row in cpu]
    assert times == sorted(times)
    assert not nvml.running


def test_only_the_jobs_gpu_is_sampled(tmp_path):
    sample(tmp_path, FakeNvml(*GPUS), gpu_uuids=("GPU-bbbb-2",))
    found = rows(tmp_path / "gpu_monitor.csv")
    assert {(row["gpu_id"], row["gpu_uuid"]) for row in found} == {("0", "GPU-bbbb-2")}


@pytest.mark.parametrize(("supported", "cell"), [(False, ""), (True, "0")])
def test_a_utilisation_that_is_not_available_is_an_empty_cell_and_zero_is_zero(tmp_path, supported, cell):
    nvml = FakeNvml(GPUS[0])
    if not supported:
        nvml.broken["utilization"] = NVMLError_NotSupported("Not Supported")
    sample(tmp_path, nvml)
    assert {row["utilization_gpu"] for row in rows(tmp_path / "gpu_monitor.csv")} == {cell}


def test_a_gpu_that_is_lost_costs_its_cells_not_the_monitor(tmp_path):
    nvml = FakeNvml(GPUS[0])
    nvml.broken["power"] = NVMLError_GpuIsLost("GPU is lost")
    status = sample(tmp_path, nvml)
    assert {row["temperature"] for row in rows(tmp_path / "gpu_monitor.csv")} == {""}
    assert status.gpu_errors == {"GPU is lost": status.samples}
    assert status.stopped_by == "end"


def test_without_a_gpu_there_is_no_gpu_file_and_a_reason(tmp_path):
    status = sample(tmp_path, FakeNvml())
    assert (status.gpu_source, status.gpu_reason) == (None, "nvml: no GPU on this node")
    assert not (tmp_path / "gpu_monitor.csv").exists()
    assert rows(tmp_path / "cpu_monitor.csv")


def test_what_is_switched_off_is_not_opened(tmp_path):
    nvml = FakeNvml(*GPUS)
    status = sample(tmp_path, nvml, gpu=False)
    assert (status.gpu_source, status.gpu_reason, nvml.calls) == (None, "switched off", {})
    sample(tmp_path / "gpu", nvml, cpu=False)
    assert sorted(path.name for path in (tmp_path / "gpu").iterdir()) == [
        "gpu_monitor.csv",
        "monitor_status.json",
    ]


def test_the_next_source_is_used_and_the_reason_is_kept():
    def broken(wanted, environment):
        raise SourceError("first: no driver")

    def working(wanted, environment):
        return LibrarySource(nvml_library(FakeNvml(*GPUS)), wanted, environment).open()

    source, reason = open_source([], {}, (broken, working))
    assert (source.name, reason) == ("nvml", "first: no driver")
    assert open_source([], {}, (broken, broken)) == (None, "first: no driver; first: no driver")


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"monitor of node 3 stopped: .*file") as error:
        sample(tmp_path / "file", FakeNvml())
    assert error.value.hint
    assert "monitor_status.json" in capsys.readouterr().err


def test_time_is_written_with_its_offset():
    assert iso(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123+00:00"


# --- the command, as a child ------------------------------------------------------------------------------


def fresh() -> None:
    """A shell's background job ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, *more: str, before=fresh) -> subprocess.Popen[str]:
    argv = [
        sys.executable,
        "-m",
        "aorta",
        "monitor",
        "--output-dir",
        str(folder),
        "--interval",
        "0.1",
        "--no-gpu",
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen([*argv, *more], stdout=pipe, stderr=pipe, text=True, preexec_fn=before)  # noqa: PLW1509


def started(folder: Path, child: subprocess.Popen[str]) -> None:
    """Wait until the sampler has its first deadline."""
    end = time.monotonic() + 60
    while not (folder / "monitor_status.json").exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_with_everything_written(tmp_path, number):
    child = start(tmp_path, "--interval", "60")
    started(tmp_path, child)
    child.send_signal(number)
    out, err = child.communicate(timeout=30)  # far below the interval: it does not wait for the next sample
    assert (child.returncode, out, err) == (0, "", "")
    status = read_json(tmp_path / "monitor_status.json", MonitorStatus)
    assert (status.stopped_by, status.interval_s) == ("signal", 60)
    assert len(rows(tmp_path / "cpu_monitor.csv")) == status.samples


def test_it_ends_with_its_parent(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with parent:
        child = start(tmp_path, "--parent-pid", str(parent.pid), "--interval", "60")
        started(tmp_path, child)
        parent.kill()
        parent.wait()
        child.communicate(timeout=30)
    assert child.returncode == 0
    assert read_json(tmp_path / "monitor_status.json", MonitorStatus).stopped_by == "parent"


def test_a_kill_loses_no_sample_and_the_status_says_that_it_did_not_end(tmp_path):
    child = start(tmp_path)
    started(tmp_path, child)
    end = time.monotonic() + 60
    while len((tmp_path / "cpu_monitor.csv").read_text().splitlines()) < 3:
        assert time.monotonic() < end
        time.sleep(0.02)
    child.kill()
    child.communicate()
    assert (tmp_path / "cpu_monitor.csv").read_text().endswith("\n")
    assert read_json(tmp_path / "monitor_status.json", MonitorStatus).stopped_by is None


def test_a_full_disk_ends_it_with_a_message_and_whole_lines(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))

    child = start(tmp_path, before=limit)
    _, err = child.communicate(timeout=60)
    assert child.returncode == RunError.exit_code
    assert "Traceback" not in err
    assert err.startswith("aorta: monitor of node 0 stopped: ")
    assert "File too large" in err
    lines = (tmp_path / "cpu_monitor.csv").read_text().splitlines(keepends=True)
    assert lines[-1].endswith("\n")
    assert {line.count(",") for line in lines} == {len(CPU_COLUMNS) - 1}
    status = read_json(tmp_path / "monitor_status.json", MonitorStatus)
    assert status.stopped_by == "write"
    assert "File too large" in status.write_error


def test_what_the_sampler_imports_stays_small():
    program = (
        "import sys; import aorta.commands.monitor, aorta.monitors.loop\n"
        "heavy = {'pandas', 'numpy', 'matplotlib', 'jinja2', 'torch', 'omegaconf', 'yaml', 'psutil'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-gpu", "--no-cpu"], "nothing to sample"),
        (["--interval", "0.01"], "--interval"),
        (["--duration", "0"], "--duration"),
        (["--node-index", "-1"], "--node-index"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, arguments, message):
    done = CliRunner().invoke(command, ["--output-dir", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert message in done.output
    assert list(tmp_path.iterdir()) == []
