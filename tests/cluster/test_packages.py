from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aorta.cluster import packages
from aorta.cluster.config import ClusterError, ClusterSettings

PROGRAMS = ["slurmctld", "slurmd", "slurmdbd", "sinfo", "munged", "mariadbd", "mariadb-install-db"]
NETNS = ["ip", "tc", "nsenter", "unshare"]


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "SEARCH_PATH", str(tmp_path))
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy-rc.d")
    return tmp_path


def put(folder: Path, name: str, script: str = "exit 0") -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_nothing_is_missing_where_all_programs_are(bin_folder: Path) -> None:
    for name in PROGRAMS:
        put(bin_folder, name)
    assert packages.missing(ClusterSettings(netns=False)) == []
    assert packages.missing(ClusterSettings(netns=True)) == ["iproute2", "util-linux"]
    for name in NETNS:
        put(bin_folder, name)
    assert packages.missing(ClusterSettings(netns=True)) == []


def test_packages_are_named_once(bin_folder: Path) -> None:
    wanted = ["mariadb-server", "munge", "slurm-client", "slurmctld", "slurmd", "slurmdbd"]
    assert packages.missing(ClusterSettings(netns=False)) == wanted


def test_without_install_the_hint_is_the_command(bin_folder: Path) -> None:
    for name in [*PROGRAMS, "apt-get"]:
        put(bin_folder, name)
    (bin_folder / "munged").unlink()
    with pytest.raises(ClusterError) as refused:
        packages.require(ClusterSettings(netns=False), install=False)
    assert refused.value.message == "these packages are missing: munge"
    assert refused.value.hint.startswith("sudo apt-get install --no-install-recommends munge ")


def test_without_apt_the_packages_are_named(bin_folder: Path) -> None:
    with pytest.raises(ClusterError, match="missing: mariadb-server, munge"):
        packages.require(ClusterSettings(netns=False), install=True)


def test_install_needs_root(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bin_folder, "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError) as refused:
        packages.require(ClusterSettings(netns=False), install=True)
    assert "--install needs root" in refused.value.hint


def test_install_holds_daemons_back_and_cleans_up(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "search_environment", lambda: dict(os.environ))
    for name in PROGRAMS[:-1]:
        put(bin_folder, name)
    log, policy, last = bin_folder / "log", bin_folder / "policy-rc.d", bin_folder / PROGRAMS[-1]
    put(
        bin_folder,
        "apt-get",
        f'{policy}; echo "$? $DEBIAN_FRONTEND $*" >>{log}; echo "#!/bin/sh" >{last}; chmod 755 {last}',
    )
    told: list[str] = []
    assert packages.require(ClusterSettings(netns=False), install=True, tell=told.append) == [
        "mariadb-server"
    ]
    assert told == ["installing mariadb-server with apt-get, which takes a minute or more"]
    assert log.read_text().splitlines() == [
        "101 noninteractive -q update",
        "101 noninteractive -q -y --no-install-recommends install mariadb-server",
    ]
    assert not policy.exists()


def test_failed_install_shows_why_and_cleans_up(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "search_environment", lambda: dict(os.environ))
    put(bin_folder, "apt-get", "echo no network >&2; exit 100")
    with pytest.raises(ClusterError, match="exited 100: no network"):
        packages.require(ClusterSettings(netns=False), install=True)
    assert not (bin_folder / "policy-rc.d").exists()


def test_a_policy_of_the_site_stays(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "search_environment", lambda: dict(os.environ))
    put(bin_folder, "policy-rc.d", "exit 0")
    put(bin_folder, "apt-get", "exit 1")
    with pytest.raises(ClusterError):
        packages.require(ClusterSettings(netns=False), install=True)
    assert (bin_folder / "policy-rc.d").read_text() == "#!/bin/sh\nexit 0\n"


def test_a_kill_while_packages_are_installed_leaves_no_policy(bin_folder: Path) -> None:
    """The policy stays while apt-get, which nobody kills with us, goes on; then it is gone."""
    program = (
        "import sys; from pathlib import Path; from aorta.cluster import packages;"
        "packages._POLICY = Path(sys.argv[1]) / 'policy-rc.d'; "
        "packages.SEARCH_PATH = sys.argv[1] + ':/bin:/usr/bin';"
        "packages._install(['munge'], '')"
    )
    put(bin_folder, "apt-get", f"touch {bin_folder}/began; read line < {bin_folder}/go; exit 0")
    os.mkfifo(bin_folder / "go")
    policy = bin_folder / "policy-rc.d"
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", program, str(bin_folder)], env=environment) as child:
        eventually((bin_folder / "began").exists)
        assert "exit 101" in policy.read_text()
        child.kill()
        child.wait()
        assert policy.exists()
        (bin_folder / "go").write_text("go\n")
    eventually(lambda: not policy.exists())


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_policy_of_somebody_else_stays(bin_folder: Path) -> None:
    put(bin_folder, "apt-get")
    policy = bin_folder / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    packages._install(["munge"], "")
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    policy.write_text(f"#!/bin/sh\n{packages._MARK}\nexit 101\n")  # an earlier one of ours
    packages._install(["munge"], "")
    assert not policy.exists()
