"""Two real users of one group share a results folder on the cluster: each gets a report of what is theirs."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.conftest import ROOT, RunningCluster

pytestmark = pytest.mark.slurm

GROUP = "aorta-pair"
USERS = {"aorta-one": 0o077, "aorta-two": 0o027}
"""Each user's umask: the first one's runs are closed to the second."""
STEPS = 60


@dataclass(frozen=True)
class Pair:
    """A folder that two users share, and the call of aorta that both can make."""

    folder: Path
    python: str

    def aorta(self, user: str, *words: str) -> str:
        """Output of aorta, called by a user who has just logged in."""
        argv = ["runuser", "-u", user, "--", "sh", "-c", f'umask {USERS[user]:04o}; exec "$@"', "sh"]
        path = ":".join([str(ROOT), *_packages()])
        home = pwd.getpwnam(user).pw_dir
        env = {
            "PATH": os.environ["PATH"], "SLURM_CONF": os.environ["SLURM_CONF"], "PYTHONPATH": path,
            "HOME": home, "USER": user, "LOGNAME": user,
        }  # fmt: skip
        done = subprocess.run(
            [*argv, self.python, "-m", "aorta", *words],
            cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, f"{user}: {words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _packages() -> list[str]:
    """Folders that hold this Python's packages."""
    return [path for path in sys.path if path.endswith("-packages")]


def _readable(path: Path) -> bool:
    """True if any user can reach `path`."""
    whole = path.resolve()
    return all(stat.S_IMODE(part.stat().st_mode) & 0o5 == 0o5 for part in (whole, *whole.parents))


def _python() -> str | None:
    """An interpreter of this version that any user can start, with the packages of this one."""
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [sys.executable, shutil.which(here, path="/usr/bin:/usr/local/bin") or ""]
    reachable = all(_readable(Path(path)) for path in (ROOT, *_packages()))
    return next((name for name in found if name and reachable and _readable(Path(name))), None)


def _call(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@pytest.fixture
def pair(cluster: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two users with an account on the cluster, gone afterwards."""
    if os.geteuid() != 0 or shutil.which("useradd") is None or shutil.which("runuser") is None:
        pytest.skip("only root can make users")
    python = _python()
    if python is None:
        pytest.skip(f"no other user can read {ROOT}, its packages and a Python of this version")
    folder = Path("/tmp") / f"aorta-pair-{os.getpid()}"
    try:
        _call("groupadd", "-f", GROUP)
        for user in USERS:
            _call("useradd", "-m", "-G", GROUP, user)
            cluster.run(["sacctmgr", "-i", "add", "user", user, "account=aorta"])
        results = folder / "results/profiling"
        results.mkdir(parents=True)
        for path in (folder, results.parent, results):
            shutil.chown(path, group=GROUP)
            path.chmod(0o2775)
        yield Pair(folder, python)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for user in USERS:
            subprocess.run(["sacctmgr", "-i", "delete", "user", user], check=False, capture_output=True)
            subprocess.run(["userdel", "-r", user], check=False, capture_output=True)
        subprocess.run(["groupdel", GROUP], check=False, capture_output=True)


def test_each_of_two_users_gets_a_report_of_what_is_theirs(pair: Pair) -> None:
    config = str(ROOT / "config/small.yaml")
    jobs: dict[str, list[str]] = {}
    for user in USERS:
        said = pair.aorta(
            user, "submit", "--nodes", "1", "--config", config, "--override", f"training.max_steps={STEPS}"
        )  # fmt: skip
        jobs[user] = [line.split("job ")[1] for line in said.splitlines() if line.startswith("submitted")]
        assert len(jobs[user]) == 1
    docs = {"aorta-one": pair.folder / "results", "aorta-two": pair.folder / "results/aorta-two"}
    for user, (job,) in jobs.items():
        assert job in pair.aorta(user, "wait", "--interval", "1")
        pair.aorta(user, "aggregate")
        report = docs[user] / "BOTTLENECK_ANALYSIS.json"
        (scenario,) = json.loads(report.read_text())["scenarios"]
        assert scenario["job_id"] == job
        assert report.owner() == user
    one, two = (job for (job,) in jobs.values())
    # What the first one closed is no business of the second; what the second left open is the first one's.
    assert one not in pair.aorta("aorta-two", "runs", "--json")
    assert two in pair.aorta("aorta-one", "runs", "--json")
    # Nothing of the other one is removed, however old.
    said = pair.aorta("aorta-one", "clean", "--older-than", "0h", "--dry-run")
    assert f"run_{one}" in said
    assert f"run_{two}" not in said
