"""Identity of this node agent: command-line options, completed by the scheduler's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.own_program import AORTAS, OwnProgram
from aorta.errors import PlanError

_OUTSIDE = (
    "the node agent runs inside a job, as a task of srun; elsewhere give "
    "--executor local --job-id ID --nodes N --node-index I"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Everything that one node agent is told."""

    scenario: Scenario
    results: Path
    config: Path | None
    overrides: tuple[str, ...] = ()
    profiler: str | None = None
    """Profiler. None means the configuration's."""
    procs_per_node: int | None = None
    monitor_interval_s: float | None = None
    """Seconds between samples. None means the configuration's."""
    executor: Literal["slurm", "local"]
    job_id: str
    node_index: int
    nodes: int
    attempt: int = 0
    slurm_node: str | None = None
    submitted_wall_ns: int | None = None
    script: Path | None = None
    own: OwnProgram = AORTAS
    """The way in which the user's program is run."""
    command: tuple[str, ...] = ()
    """The user's program. Empty means the trainer."""

    @property
    def run_dir(self) -> RunDir:
        """Folder of this run's artefacts."""
        return RunDir.of(self.results, self.scenario, self.job_id)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits in seconds; each has an AORTA_ variable for sites (and tests) that need another one."""

    gather_s: float = 120.0
    """AORTA_GATHER_TIMEOUT_S: until every node has reported."""
    grace_s: float = 25.0
    """AORTA_KILL_GRACE_S: from the forwarded signal to SIGKILL; Slurm itself often kills after 30 s."""
    peer_grace_s: float = 15.0
    """AORTA_PEER_GRACE_S: for ranks to fail by themselves after another node failed."""
    signal_lead_s: float = 150.0
    """AORTA_SIGNAL_LEAD_S: a signal this near the job's end means its time limit (90 s asked for, up to 60
    s early).
    """
    export_s: float = 1800.0
    """AORTA_EXPORT_TIMEOUT_S: for each of exporting and reducing a node's traces after training."""
    silence_s: float = 60.0
    """AORTA_SILENCE_S: an agent that gives no sign of life for so long is taken for dead."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> TimeLimits:
        """Limits with what `environ` changes.

        Raises:
            PlanError: a variable is not a number of seconds.
        """
        default = cls()
        return cls(
            gather_s=_seconds(environ, "AORTA_GATHER_TIMEOUT_S", default.gather_s),
            grace_s=_seconds(environ, "AORTA_KILL_GRACE_S", default.grace_s),
            peer_grace_s=_seconds(environ, "AORTA_PEER_GRACE_S", default.peer_grace_s),
            signal_lead_s=_seconds(environ, "AORTA_SIGNAL_LEAD_S", default.signal_lead_s),
            export_s=_seconds(environ, "AORTA_EXPORT_TIMEOUT_S", default.export_s),
            silence_s=_seconds(environ, "AORTA_SILENCE_S", default.silence_s),
        )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise PlanError(
            f"{name} is {text!r}, expected a number of seconds", f"unset {name} for {default:g} s"
        )
    return value


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The job, and this node's place in it."""

    executor: Literal["slurm", "local"]
    job_id: str
    node_index: int
    nodes: int
    attempt: int
    slurm_node: str | None


def find_place(
    environ: Mapping[str, str],
    *,
    executor: Literal["slurm", "local"] | None = None,
    job_id: str | None = None,
    node_index: int | None = None,
    nodes: int | None = None,
) -> NodePlace:
    """Options where given, else Slurm's variables of this step.

    The number of nodes is that of the running step, so it is what the job has, not what was asked for.

    Raises:
        PlanError: something is neither given nor in the environment, or contradicts itself.
    """
    chosen = executor or ("slurm" if environ.get("SLURM_JOB_ID") else "local")
    if chosen == "local":
        if job_id is None or nodes is None or node_index is None:
            raise PlanError("the local executor needs --job-id, --nodes and --node-index", _OUTSIDE)
        place = NodePlace(chosen, job_id, node_index, nodes, 0, None)
    else:
        step_nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
        place = NodePlace(
            chosen,
            job_id or _variable(environ.get("SLURM_JOB_ID"), "SLURM_JOB_ID"),
            node_index if node_index is not None else _number(environ.get("SLURM_NODEID"), "SLURM_NODEID"),
            nodes if nodes is not None else _number(step_nodes, "SLURM_STEP_NUM_NODES"),
            _number(environ.get("SLURM_RESTART_COUNT") or "0", "SLURM_RESTART_COUNT"),
            environ.get("SLURMD_NODENAME"),
        )
        _refuse_many_tasks(environ, place)
    if not 0 <= place.node_index < place.nodes:
        raise PlanError(f"node index {place.node_index} is not one of {place.nodes} nodes", _OUTSIDE)
    return place


def _refuse_many_tasks(environ: Mapping[str, str], place: NodePlace) -> None:
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdigit() and int(tasks) != place.nodes:
        raise PlanError(
            f"the step has {tasks} tasks on {place.nodes} nodes, expected one per node: each task would "
            "start the node's ranks again",
            "start the agent with srun --ntasks-per-node=1; --procs-per-node sets the number of ranks per "
            "node",
        )


def _variable(value: str | None, name: str) -> str:
    if not value:
        raise PlanError(f"{name} is not set", _OUTSIDE)
    return value


def _number(value: str | None, name: str) -> int:
    text = _variable(value, name)
    if not text.isdigit():
        raise PlanError(f"{name} is {text!r}, expected a number", _OUTSIDE)
    return int(text)
