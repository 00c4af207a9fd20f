"""Each look at the machine, on a machine that the test makes up."""

from __future__ import annotations

import json
import os
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import pytest

from aorta.doctor import devices, machine, slurm
from aorta.launch.storage import Storage
from aorta.launch.tools import ToolAnswer
from aorta.units import BYTES_PER_GIB

Usage = namedtuple("Usage", "total used free")
TORCH = {
    "version": "2.9.0", "cuda": "12.8", "hip": None, "distributed": True, "gloo": True, "nccl": True,
    "gpu": True, "devices": 4, "nccl_version": "2.27.5",
}  # fmt: skip


def states(checks: Sequence[machine.Check]) -> dict[str, str]:
    return {check.name: check.state for check in checks}


def saying(text: str) -> devices.Runner:
    return lambda _argv: ToolAnswer(0, text)


def test_torch_with_gpus_and_nccl() -> None:
    checks = devices.torch(saying("a site's banner\n" + json.dumps(TORCH) + "\n"))
    assert [check.text for check in checks] == ["2.9.0, built for CUDA 12.8", "4 GPUs", "nccl 2.27.5, gloo"]
    assert set(states(checks).values()) == {"ok"}


def test_torch_for_gpus_that_sees_none_and_a_cpu_build() -> None:
    blind = TORCH | {"gpu": False, "devices": 0}
    assert "sees none" in devices.torch(saying(json.dumps(blind)))[1].text
    plain = blind | {"cuda": None, "nccl": False, "nccl_version": None}
    checks = devices.torch(saying(json.dumps(plain)))
    assert (checks[0].text, checks[1].state, checks[2].text) == ("2.9.0, built for CPU", "note", "gloo")


def test_gpu_torch_without_nccl_is_noted_and_without_anything_missing() -> None:
    lame = TORCH | {"nccl": False, "nccl_version": None}
    assert devices.torch(saying(json.dumps(lame)))[2].state == "note"
    assert devices.torch(saying(json.dumps(lame | {"gloo": False})))[2].state == "missing"


def test_absent_broken_and_hanging_torch() -> None:
    absent = devices.torch(lambda _: ToolAnswer(1, err="ModuleNotFoundError: No module named 'torch'"))
    assert (absent[0].text, set(states(absent).values())) == ("not installed", {"missing"})
    broken = devices.torch(lambda _: ToolAnswer(1, err="OSError: libcudart.so.12: no such file"))
    assert "libcudart.so.12" in broken[0].text
    silent = devices.torch(lambda _: ToolAnswer(None, err="python did not answer within 60 s"))
    assert "did not answer" in silent[0].text


def test_machine_without_gpu_has_none_to_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("aorta.monitors.gpu.LISTERS", ())
    monkeypatch.setattr(devices, "find_gpus", lambda _env: devices_none())
    assert states(devices.gpus({})) == {"gpus": "missing", "gpu sampling": "missing"}


def devices_none() -> object:
    from aorta.monitors.gpu import Gpus

    return Gpus(None, [], "none")


def executable(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_profilers_by_path_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "bin", "nsys", "#!/bin/sh\necho\necho NVIDIA Nsight Systems version 2023.4.4\n")
    executable(tmp_path / "bin", "rocprofv3", "#!/bin/sh\necho no libraries >&2\nexit 3\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.delenv("AORTA_NSYS", raising=False)
    nsys, rocprof = devices.profilers()
    assert (nsys.state, nsys.value["version"]) == ("ok", "NVIDIA Nsight Systems version 2023.4.4")
    assert rocprof.state == "missing"
    assert "no libraries" in rocprof.text
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(devices.nsys, "_elsewhere", lambda _environ, _roots: None)
    assert {check.text for check in devices.profilers()} == {"not found"}


def test_nsys_of_a_version_that_was_not_tried_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AORTA_NSYS", str(executable(tmp_path / "bin", "nsys", "#!/bin/sh\n")))
    for said, state in (("version 2019.1.1", "note"), ("version 2023.4.4", "ok"), ("version 2099.1", "note")):
        assert devices.profilers(saying(said))[0].state == state


def test_permissions_of_kernel_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {check.state for check in devices.permissions(tmp_path)} == {"note"}
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "sys/kernel/perf_event_paranoid").write_text("4\n")
    (tmp_path / "driver/nvidia/params").write_text("RmMsg: \nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [check.state for check in devices.permissions(tmp_path)] == ["note", "note"]
    (tmp_path / "sys/kernel/perf_event_paranoid").write_text("2\n")
    (tmp_path / "driver/nvidia/params").write_text("RmProfilingAdminOnly: 0\n")
    assert [check.state for check in devices.permissions(tmp_path)] == ["ok", "ok"]
    (tmp_path / "sys/kernel/perf_event_paranoid").write_text("4\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert devices.permissions(tmp_path)[0].state == "ok"


def test_results_folder_room_and_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "not" / "yet"
    (check,) = machine.results_folder(target)
    assert (check.state, check.value["writable"]) == ("ok", True)
    assert not target.parent.exists()
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(100, 99, BYTES_PER_GIB // 2))
    assert machine.results_folder(target)[0].state == "note"
    monkeypatch.setattr(machine, "probe_storage", lambda path: Storage(path, False, "nfs4", "/"))
    assert machine.results_folder(target)[0].state == "missing"


@pytest.mark.parametrize(("gib", "state"), [(1.9, "note"), (2.0, "ok")])
def test_room_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, gib: float, state: str) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(0, 0, gib * BYTES_PER_GIB))
    assert machine.temporary_folder()[0].state == state


def test_temporary_folder_mounted_noexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(0, 0, 9 * BYTES_PER_GIB))
    flags = namedtuple("Flags", "f_flag")
    monkeypatch.setattr(machine.os, "statvfs", lambda _path: flags(os.ST_NOEXEC))
    assert machine.temporary_folder()[0].value["noexec"] is True
    assert machine.temporary_folder()[0].state == "note"


def test_shared_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(0, 0, 64 << 20))
    assert machine.shared_memory(tmp_path)[0].state == "note"
    assert machine.shared_memory(tmp_path / "absent")[0].state == "note"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(0, 0, 8 << 30))
    assert machine.shared_memory(tmp_path)[0].state == "ok"


@pytest.mark.parametrize(("soft", "state"), [(1024, "note"), (4096, "ok"), (-1, "ok")])
def test_open_file_limit(monkeypatch: pytest.MonkeyPatch, soft: int, state: str) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _which: (soft, -1))
    assert states(machine.limits())["open files"] == state


def test_host_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.network, "own_addresses", lambda: ["10.0.0.7"])
    monkeypatch.setattr(machine.network, "resolve", lambda _host: [])
    assert machine.names()[0].state == "note"
    monkeypatch.setattr(machine.network, "resolve", lambda _host: ["10.0.0.7"])
    assert machine.names()[0].state == "ok"
    monkeypatch.setattr(machine.network, "own_addresses", list)
    assert "loopback" in machine.names()[0].text


def test_declared_packages_are_those_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.packages(None, "packages")[0].state == "ok"
    assert machine.packages("dev", "test packages")[0].state == "ok"
    wants = ["click>=8", "pytest>=8; extra == 'dev'", "rich>=13; extra == 'dev'"]
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda _name: wants)
    assert machine.packages(None, "packages")[0].text == "all 1 installed"
    assert machine.packages("dev", "test packages")[0].text == "all 2 installed"


def test_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wants = ["click>=8", "no_such_pkg>=1", "torch>=2; extra == 'train'"]
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda _name: wants)
    (check,) = machine.packages(None, "packages")
    assert (check.state, check.value) == ("missing", {"missing": ["no_such_pkg"]})


# --- Slurm -------------------------------------------------------------------------------------------------

SINFO = "debug*|up|1:00:00|2|gpu:a100:4|node[1-2]\n"


def site(answers: dict[str, ToolAnswer]) -> slurm.Caller:
    def call(argv: Sequence[str]) -> ToolAnswer:
        for start, answer in answers.items():
            if " ".join(argv).startswith(start):
                return answer
        return ToolAnswer(1, err=f"unexpected: {argv}")

    return call


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in slurm.CLIENTS:
        executable(tmp_path / "bin", name, "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


ANSWERS = {
    "sinfo --version": ToolAnswer(0, "slurm 23.11.4\n"),
    "sinfo -h -a": ToolAnswer(0, SINFO),
    "sinfo -h -N": ToolAnswer(0, "node1 idle*\nnode2 mixed\nnode2 mixed\n"),
    "sacctmgr": ToolAnswer(0, "Team\n"),
    "sacct ": ToolAnswer(0, ""),
    "scontrol show node": ToolAnswer(0, ""),
}


def test_no_slurm_is_five_lines_and_one_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = slurm.slurm(tmp_path)
    assert states(checks) == dict.fromkeys(slurm.NAMES, "missing")
    assert checks[0].text == "no Slurm here"


@pytest.mark.usefixtures("clients")
def test_cluster_with_gpus_and_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "probe_storage", lambda path: Storage(path, True, "lustre", "/scratch"))
    checks = slurm.slurm(tmp_path, site(ANSWERS))
    assert states(checks) == dict.fromkeys(slurm.NAMES, "ok")
    assert checks[0].text == "slurm 23.11.4"
    assert checks[2].text.startswith("debug (default): 2 nodes, 4 GPUs each, up to 01:00:00")
    assert checks[2].value["node_states"] == {"idle": 1, "mixed": 1}
    assert checks[3].value == {"works": True, "accounts": ["team"]}


@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize(
    ("second", "state"), [("drained", "note"), ("down*", "note"), ("planned", "ok"), ("allocated", "ok")]
)
def test_cluster_of_which_no_node_starts_jobs(tmp_path: Path, second: str, state: str) -> None:
    answers = ANSWERS | {"sinfo -h -N": ToolAnswer(0, f"node1 draining\nnode2 {second}\n")}
    check = slurm.slurm(tmp_path, site(answers))[2]
    assert check.state == state
    assert ("sinfo -R" in check.hint) is (state == "note")


@pytest.mark.usefixtures("clients")
def test_cluster_whose_nodes_cannot_see_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "probe_storage", lambda path: Storage(path, True, "ext4", "/"))
    check = slurm.slurm(tmp_path, site(ANSWERS))[4]
    assert check.state == "missing"
    assert "node1" in check.text
    monkeypatch.setattr(slurm, "probe_storage", lambda path: Storage(path, True, "newfs", "/"))
    assert slurm.slurm(tmp_path, site(ANSWERS))[4].state == "note"


@pytest.mark.usefixtures("clients")
def test_site_without_accounting_and_controller_that_is_down(tmp_path: Path) -> None:
    off = ANSWERS | {
        "sacct ": ToolAnswer(1, err="Slurm accounting storage is disabled"),
        "sacctmgr": ToolAnswer(1, err="You are not running a supported accounting_storage plugin"),
    }
    check = slurm.slurm(tmp_path, site(off))[3]
    assert (check.state, check.value) == ("note", {"works": False, "accounts": []})
    down = {"sinfo": ToolAnswer(1, err="sinfo: error: Unable to contact slurm controller")}
    checks = slurm.slurm(tmp_path, site(down))
    assert [check.state for check in checks] == ["ok", "missing", "missing", "missing", "missing"]
    assert "Unable to contact" in checks[1].text
