"""All probes of a machine, and what follows from them."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from aorta.cluster import packages as cluster_packages
from aorta.cluster.config import ClusterSettings
from aorta.doctor import devices, machine, slurm
from aorta.doctor.abilities import DEFAULT, abilities
from aorta.doctor.probe import Probe, run_probes
from aorta.doctor.records import Check, Examination


def probes(results: Path) -> list[Probe]:
    """Every probe, in the order of the answer."""
    environment = dict(os.environ)
    return [
        Probe(("python",), machine.python),
        Probe(("packages",), partial(machine.packages, None, "packages")),
        Probe(("torch", "torch devices", "collectives"), devices.torch, devices.TORCH_S),
        Probe(("gpus", "gpu sampling"), partial(devices.gpus, environment), 25.0),
        Probe(("nsys", "rocprofv3"), devices.profilers, 2 * devices.PROGRAM_S),
        Probe(("cpu sampling permission", "gpu metrics permission"), devices.permissions),
        Probe(slurm.NAMES, partial(slurm.slurm, results), 7 * slurm.CALL_S),
        Probe(("results",), partial(machine.results_folder, results)),
        Probe(("tmp",), machine.temporary_folder),
        Probe(("shm",), machine.shared_memory),
        Probe(("open files", "cpus"), machine.limits),
        Probe(("host name",), machine.names, 15.0),
        Probe(("locale",), machine.language),
        Probe(("test packages",), partial(machine.packages, "dev", "test packages")),
        Probe(("cluster programs",), cluster_programs),
    ]


def cluster_programs() -> list[Check]:
    """Checks for the programs that a Slurm cluster on this machine needs."""
    netns = os.geteuid() == 0
    absent = cluster_packages.missing(ClusterSettings(netns=netns))
    value = {"missing": absent}
    installable = netns and shutil.which("apt-get", path=cluster_packages.SEARCH_PATH) is not None
    if not absent:
        return [Check("cluster programs", "ok", "all there", value=value)]
    text = f"packages not installed: {', '.join(absent)}"
    if installable:
        return [Check("cluster programs", "note", text, "run make cluster-up", value)]
    hint = "run sudo make cluster-up (on Debian or Ubuntu)"
    return [Check("cluster programs", "missing", text, hint, value)]


def examine(results: Path, needed: Sequence[str] = DEFAULT) -> Examination:
    """Look at this machine.

    Args:
        results: where runs would go; need not exist.
        needed: names of abilities that decide about `Examination.ok`; in `a|b` one is enough.
    """
    found = run_probes(probes(results))
    return Examination(socket.gethostname(), found, abilities(found), tuple(needed))
