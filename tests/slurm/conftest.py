"""Tests marked `slurm` run on the cluster of `aorta cluster up`, never on a site's own Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from aorta.cluster import cluster as clusters
from aorta.cluster.config import ClusterDir, ClusterSettings

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that is up; SLURM_CONF names it while the fixture lives."""

    folder: ClusterDir
    settings: ClusterSettings

    def run(self, argv: Sequence[str]) -> str:
        """Output of a Slurm command, which must succeed."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout


def _without(reason: str) -> NoReturn:
    if os.environ.get("AORTA_REQUIRE_SLURM"):
        pytest.fail(f"AORTA_REQUIRE_SLURM is set, and {reason}")
    pytest.skip(f"{reason}; start one with `make cluster-up`")


@pytest.fixture(scope="session")
def cluster() -> Iterator[RunningCluster]:
    """The cluster that SLURM_CONF names, if it is one of ours, else the one in the checkout's .cluster."""
    named = Path(os.environ.get("SLURM_CONF", ""))
    ours = (named.parent / "cluster.json").is_file()
    conf = named if ours else ROOT / ".cluster/slurm.conf"
    if not (conf.parent / "cluster.json").is_file():
        _without(f"no cluster of `aorta cluster up` in {conf.parent}")
    folder = ClusterDir(conf.parent)
    now = clusters.status(folder)
    if not now.up or now.record is None:
        _without(f"the cluster in {conf.parent} is not up: {now.problem or now.nodes}")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
            patch.delenv(name)
        patch.setenv("SLURM_CONF", str(conf))
        yield RunningCluster(folder, now.record.settings)


@pytest.fixture(autouse=True)
def _marked_tests_have_a_cluster(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slurm"):
        request.getfixturevalue("cluster")
