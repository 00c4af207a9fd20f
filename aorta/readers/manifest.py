"""Describes what a run was and how it ended by its own account.

Manifest, configuration, markers, monitor states.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from aorta.artefacts.agents import as_it_is
from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import Unread, is_there, walk
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, is_scenario
from aorta.artefacts.records import (
    MAX_RANKS,
    SCHEMA_VERSION,
    Manifest,
    MonitorStatus,
    NodeInfo,
    NodeStatus,
    RunStatus,
)
from aorta.artefacts.status import merge_status
from aorta.config.schema import Config, FaultsConfig
from aorta.errors import AortaError, ArtefactError

T = TypeVar("T")

_MOST_CPUS = 1_000_000


@dataclass(frozen=True, slots=True)
class Account:
    """A run by its own files; None or absent where a file is missing or broken, which `problems` says."""

    manifest: Manifest | None
    status: RunStatus | None
    config: Config | None
    infos: dict[int, NodeInfo]
    """Values by node index."""
    monitors: dict[int, MonitorStatus]
    """Values by node index."""
    problems: tuple[Problem, ...]

    @property
    def nodes_expected(self) -> int | None:
        """Nodes that the running job had, as its node 0 counted them; None without a manifest."""
        if self.manifest is None:
            return None
        return len(self.manifest.nodes) + len(self.manifest.nodes_missing)


def read_account(run: RunDir) -> Account:
    """Read everything that a run says about itself; nothing missing or broken is fatal."""
    problems: list[Problem] = []
    problems += _closed_folders(run)
    manifest = _manifest(run, problems)
    infos = {node.node_index: node for node in manifest.nodes} if manifest else {}
    monitors = {}
    markers = []
    for index, folder in run.nodes():
        if index not in infos:
            info = _read(run.root, folder.info, NodeInfo, problems)
            wrong = _impossible(info) if info is not None else None
            if wrong is not None:
                name = str(folder.info.relative_to(run.root))
                problems.append(Problem(file=name, reason=f"{wrong}: the file is not used"))
            elif info is not None:
                infos[index] = info
        marker = _read(run.root, folder.status, NodeStatus, problems)
        if marker is not None:
            markers.append(as_it_is(marker, folder.status))
        if is_there(folder.monitor_status):
            monitor = _read(run.root, folder.monitor_status, MonitorStatus, problems)
            if monitor is not None:
                monitors[index] = monitor
    return Account(
        manifest=manifest,
        status=_status(run, manifest, markers),
        config=_config(run, problems),
        infos=infos,
        monitors=monitors,
        problems=tuple(problems),
    )


def _closed_folders(run: RunDir) -> list[Problem]:
    """The folders of the run that cannot be looked into; the profiler's own is closed on purpose."""
    unread: Unread = []
    for _ in walk(run.root, unread):
        pass
    return [
        Problem(file=str(path.relative_to(run.root)), reason=f"the folder cannot be read: {reason}")
        for path, reason in unread
        if path != run.nsys_reports
    ]


def _manifest(run: RunDir, problems: list[Problem]) -> Manifest | None:
    """The manifest, unless its world size cannot be; one in the folder of another scenario is named."""
    manifest = _read(run.root, run.manifest, Manifest, problems)
    if manifest is None:
        return None
    name, folder = run.manifest.name, run.root.parent.name
    if not 0 < manifest.world_size <= MAX_RANKS:
        reason = f"world_size is {manifest.world_size}, expected 1 to {MAX_RANKS}: the file is not used"
        problems.append(Problem(file=name, reason=reason))
        return None
    wrong = next(filter(None, map(_impossible, manifest.nodes)), None)
    if wrong is not None:
        problems.append(Problem(file=name, reason=f"{wrong}: the file is not used"))
        return None
    if folder != manifest.scenario and is_scenario(folder):
        reason = (
            f"is from {manifest.scenario}, but the run is in {folder}; the nodes and ranks in the manifest "
            f"are "
            "used"
        )
        problems.append(Problem(file=name, reason=reason))
    return manifest


def _impossible(info: NodeInfo) -> str | None:
    """Return which count of a node cannot be, in words; None where all can."""
    counts = {
        "node_index": (info.node_index, 0, MAX_RANKS),
        "processes": (info.processes, 0, MAX_RANKS),
        "cpus_usable": (info.cpus_usable, 1, _MOST_CPUS),
        "cpus_machine": (info.cpus_machine, 1, _MOST_CPUS),
        "memory_limit_bytes": (info.memory_limit_bytes, 1, 2**62),
    }
    for name, (value, least, most) in counts.items():
        if value is not None and not least <= value <= most:
            return f"{name} of node {info.node_index} is {value}, expected {least} to {most}"
    return None


def _read(root: Path, path: Path, kind: type[T], problems: list[Problem]) -> T | None:
    name = str(path.relative_to(root))
    try:
        record = read_json(path, kind)
    except ArtefactError as error:
        problems.append(Problem(file=name, reason=error.message.removeprefix(f"{path}: ")))
        return None
    version = getattr(record, "schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        reason = f"has schema version {version}; this aorta reads up to {SCHEMA_VERSION}"
        problems.append(Problem(file=name, reason=reason))
        return None
    return record


def _status(run: RunDir, manifest: Manifest | None, markers: list[NodeStatus]) -> RunStatus | None:
    """Merge the markers again: `status.json` is as old as the last node that could write it."""
    if manifest is None and not markers:
        return None
    if manifest is None:
        attempt = max(marker.attempt for marker in markers)
        return merge_status(run.root.name.removeprefix("run_"), attempt, markers, [])
    expected = sorted([node.node_index for node in manifest.nodes] + manifest.nodes_missing)
    return merge_status(manifest.job_id, manifest.attempt, markers, expected)


def _config(run: RunDir, problems: list[Problem]) -> Config | None:
    from aorta.config.load import cut_off, load_config

    if not is_there(run.config):
        problems.append(Problem(file=run.config.name, reason="missing: default thresholds are used"))
        return None
    try:
        # What was put in on purpose is the truth by which the analysis is judged: it must find it alone.
        config = msgspec.structs.replace(load_config(run.config), faults=FaultsConfig())
        lacks = cut_off(run.config)
    except AortaError as error:
        reason = f"{error.message.removeprefix(f'{run.config}: ')}; default thresholds are used"
        problems.append(Problem(file=run.config.name, reason=reason))
        return None
    if lacks is not None:
        problems.append(Problem(file=run.config.name, reason=lacks))
    return config
