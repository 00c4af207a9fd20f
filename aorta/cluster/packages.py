"""The programs that the cluster is made of, from the distribution's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from aorta.cluster.config import ClusterError, ClusterSettings

_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sinfo": "slurm-client",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_NETNS_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
# Daemons live in sbin, which a user's PATH often lacks.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_POLICY = Path("/usr/sbin/policy-rc.d")
_MARK = "# of aorta cluster up --install, while it runs"


def search_environment() -> dict[str, str]:
    """The caller's environment with the folders of daemons in PATH."""
    return {**os.environ, "PATH": SEARCH_PATH}


def missing(settings: ClusterSettings) -> list[str]:
    """Packages to install before a cluster with `settings` can start, each once, sorted."""
    needed = _PROGRAMS | (_NETNS_PROGRAMS if settings.netns else {})
    return sorted(
        {package for name, package in needed.items() if shutil.which(name, path=SEARCH_PATH) is None}
    )


def install_argvs(packages: list[str]) -> list[list[str]]:
    """Commands that install `packages` without asking anything."""
    return [
        ["apt-get", "-q", "update"],
        ["apt-get", "-q", "-y", "--no-install-recommends", "install", *packages],
    ]


def require(
    settings: ClusterSettings, install: bool, tell: Callable[[str], object] = lambda _: None
) -> list[str]:
    """Make sure that every program is there, and return the packages that were installed.

    Raises:
        ClusterError: some are missing and may not or could not be installed; the hint is the command to run.
    """
    packages = missing(settings)
    if not packages:
        return []
    by_hand = f"sudo apt-get install --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get", path=SEARCH_PATH) is None:
        raise ClusterError(
            f"programs of these Debian packages are missing: {', '.join(packages)}",
            "install Slurm, munge, MariaDB and iproute2 with this system's package manager",
        )
    if not install or os.geteuid() != 0:
        why = "--install needs root" if install else "or run as root with --install"
        raise ClusterError(f"these packages are missing: {', '.join(packages)}", f"{by_hand}   ({why})")
    tell(f"installing {', '.join(packages)} with apt-get, which takes a minute or more")
    _install(packages, by_hand)
    if still := missing(settings):
        raise ClusterError(f"installed, but programs of {', '.join(still)} are missing", by_hand)
    return packages


def _install(packages: list[str], by_hand: str) -> None:
    """Install without letting the packages start daemons of their own; ours bring their configuration."""
    with _held_back() as alive:
        for argv in install_argvs(packages):
            done = subprocess.run(
                argv,
                env={**search_environment(), "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                pass_fds=alive,
            )
            if done.returncode != 0:
                answer = "\n    ".join((done.stderr or done.stdout).splitlines()[-5:])
                raise ClusterError(f"`{' '.join(argv)}` exited {done.returncode}: {answer}", by_hand)


@contextlib.contextmanager
def _held_back() -> Iterator[tuple[int, ...]]:
    """Keep daemons of packages from being started meanwhile; what is in the machine already stays.

    A process of its own takes the file away when this one and those that hold the descriptors have ended, be
    it by SIGKILL.
    """
    if _POLICY.exists() and _MARK not in _POLICY.read_text(encoding="utf-8", errors="replace"):
        yield ()
        return
    reader, writer = os.pipe()
    try:
        with subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; rm -f -- "$1"', "sh", str(_POLICY)],
            stdin=reader,
            start_new_session=True,
        ) as remover:
            os.close(reader)
            _POLICY.write_text(f"#!/bin/sh\n{_MARK}\nexit 101\n", encoding="ascii")
            _POLICY.chmod(0o755)
            try:
                yield (writer,)
            finally:
                os.close(writer)
                remover.wait()
    finally:
        _POLICY.unlink(missing_ok=True)
