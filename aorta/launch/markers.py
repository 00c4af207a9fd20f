"""The node agents' own markers: what decides where no scheduler can be asked."""

from __future__ import annotations

from dataclasses import dataclass

from aorta.artefacts.agents import as_it_is
from aorta.artefacts.files import changed_ns, entries
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import FIRST_FAILURE, Manifest, NodeStatus
from aorta.artefacts.status import merge_status
from aorta.errors import ArtefactError
from aorta.launch.states import STATES, UNKNOWN, JobState

_WORDS = {
    "running": "RUNNING",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "timeout": "TIMEOUT",
}


@dataclass(frozen=True, slots=True)
class Markers:
    """Markers that the agents of a run have written."""

    state: JobState
    """Running while any node's marker says so."""
    worst: JobState
    """The merged state: that of the node that fared worst, also while others have not ended."""
    reason: str
    running: tuple[int, ...]
    """The nodes whose marker says that they run; of a job that has ended, they had no time to say how."""
    nodes: int | None
    """Number of nodes of the running job, by its manifest."""
    hosts: tuple[str, ...]
    heartbeat_ns: int
    """Newest change of a file that grows while the job lives; 0: there is none yet."""


def read_markers(run: RunDir, job_id: str, nodes: int | None) -> Markers:
    """The state of a run by its nodes' markers; `nodes` counts where there is no manifest yet.

    Markers of an earlier attempt do not count. A file that cannot be read is a marker that is not there.
    """
    statuses = _statuses(run)
    attempt = max((status.attempt for status in statuses), default=0)
    try:
        manifest = read_json(run.manifest, Manifest)
        nodes = len(manifest.nodes) + len(manifest.nodes_missing)
        attempt = max(attempt, manifest.attempt)
    except ArtefactError:
        pass
    merged = merge_status(job_id, attempt, statuses, range(nodes or len(statuses)))
    hosts = tuple(status.host for status in merged.nodes)
    if not merged.nodes:
        return Markers(UNKNOWN, UNKNOWN, "", (), nodes, hosts, _heartbeat(run))
    worst = STATES[_WORDS[merged.state]]
    running = tuple(status.node_index for status in merged.nodes if status.state == "running")
    state = STATES["RUNNING"] if running else worst
    return Markers(state, worst, _reason(merged.nodes), running, nodes, hosts, _heartbeat(run))


def _statuses(run: RunDir) -> list[NodeStatus]:
    found = []
    for _, node in run.nodes():
        try:
            found.append(as_it_is(read_json(node.status, NodeStatus), node.status))
        except ArtefactError:
            continue
    return found


def _reason(statuses: list[NodeStatus]) -> str:
    """The reason of the node that ended badly first: other nodes' ranks fail because its ranks are gone."""
    badly = [status for status in statuses if status.state in ("failed", "timeout", "cancelled")]
    if not badly:
        return ""
    first = min(badly, key=lambda status: (status.ended_wall_ns is None, status.ended_wall_ns or 0))
    why = (
        first.lost[0].removeprefix(FIRST_FAILURE)
        if first.lost
        else f"{first.state}, exit code {first.exit_code}"
    )
    return f"node{first.node_index}: {why}"


def _heartbeat(run: RunDir) -> int:
    growing = list(run.all_records().values())
    for _, node in run.nodes():
        growing += [node.status, *(path for path in entries(node.root) if path.suffix == ".csv")]
    return max(map(changed_ns, growing), default=0)
