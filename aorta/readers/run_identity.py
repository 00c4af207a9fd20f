"""Describes what a run was: its scenario and job, its configuration, and the node and clock of each rank."""

from __future__ import annotations

from collections.abc import Mapping

from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.step_columns import StepColumns
from aorta.config.schema import Config
from aorta.errors import ArtefactError
from aorta.readers.run import RunData
from aorta.units import NS_PER_S

_MINUTE_NS = 60 * NS_PER_S


def hosts_of(data: RunData) -> dict[int, str]:
    """Returns each rank's host name, by its records."""
    return {rank: steps[-1:].labels[0].host for rank, steps in data.records.by_rank.items()}


def machines_of(data: RunData) -> dict[int, str]:
    """Returns each rank's machine; empty where a node does not say which machine it is."""
    known = {info.host: info.machine for info in data.account.infos.values() if info.machine}
    hosts = hosts_of(data)
    return {rank: known[host] for rank, host in hosts.items()} if known.keys() >= set(hosts.values()) else {}


def uses_cuda(data: RunData) -> bool:
    """Returns True if a rank trained on a GPU, by its records."""
    return any(steps.labels[0].device.startswith("cuda") for steps in data.records.by_rank.values())


def nodes_of(data: RunData) -> dict[int, str]:
    """Each rank's node: its host name, with the node's number where hosts of several nodes share one."""
    manifest, hosts = data.account.manifest, hosts_of(data)
    if manifest is None:
        return hosts
    names = [node.host for node in manifest.nodes]
    found, first = {}, 0
    for node in sorted(manifest.nodes, key=lambda node: node.node_index):
        unique = names.count(node.host) == 1
        name = node.host if unique else f"{node.host} (node {node.node_index})"
        found.update(dict.fromkeys(range(first, first + node.processes), name))
        first += node.processes
    return {rank: found.get(rank, host) for rank, host in hosts.items()}


def boot_epochs(data: RunData) -> dict[int, int]:
    """The wall-clock ns of each rank's boot, by which rocprofv3 counts, as its node read both clocks."""
    found: dict[int, int] = {}
    for _, info in sorted(data.account.infos.items()):
        ranks = range(len(found), len(found) + info.processes)
        found.update(dict.fromkeys(ranks, info.clock.realtime_ns - info.clock.boottime_ns))
    return found


def clocks(data: RunData, by_rank: Mapping[int, StepColumns]) -> dict[int, str]:
    """Each rank's clock, by its machine: the boot id that its node reported, otherwise its host name.

    Ranks make their steps together. Those of one machine that begin minutes apart by their own clocks are in
    time namespaces (time_namespaces(7)), which show one boot id and each another time.
    """
    machines = {info.host: info.machine or info.host for info in data.account.infos.values()}
    hosts = {rank: steps.labels[0].host for rank, steps in by_rank.items() if len(steps)}
    starts = {rank: int(by_rank[rank].column("mono_start_ns")[0]) for rank in hosts}
    first: dict[str, int] = {}
    found = {}
    for rank, host in hosts.items():
        machine = machines.get(host, host)
        minutes = round((starts[rank] - first.setdefault(machine, starts[rank])) / _MINUTE_NS)
        found[rank] = f"{machine} {minutes:+} min" if minutes else machine
    return found


def knobs(data: RunData) -> Config | None:
    """The configuration, unless the job ran a program that does not read it."""
    manifest = data.account.manifest
    if manifest is not None and manifest.plan.workload is None:
        return None
    return data.account.config


def scenario(run: RunDir, recorded: str | None) -> str | None:
    """The manifest's scenario, otherwise the folder's exact name."""
    if recorded is not None:
        return recorded
    try:
        return Scenario(run.root.parent.name).name
    except ArtefactError:
        return None


def job_id(run: RunDir) -> str | None:
    """The job's id by the folder's name."""
    name = run.root.name
    return name.removeprefix("run_") if name.startswith("run_") else None
