"""The nodes' markers merged into the state of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aorta.artefacts.records import NodeStatus, RunStatus, State

_WORST_FIRST: tuple[State, ...] = ("failed", "timeout", "cancelled", "running", "completed")


def merge_status(
    job_id: str, attempt: int, markers: Iterable[NodeStatus], expected: Sequence[int]
) -> RunStatus:
    """The state of an attempt: the worst of its nodes, so that one failed node is a failed run.

    Args:
        job_id: the job.
        attempt: markers of other attempts are left out.
        markers: one per node.
        expected: the node indices that the job has.

    A node without a marker keeps the run `running` unless another one says worse: nothing says that it ended.
    """
    nodes = sorted((item for item in markers if item.attempt == attempt), key=lambda item: item.node_index)
    seen = {marker.node_index for marker in nodes}
    missing = [index for index in expected if index not in seen]
    states: set[State] = {marker.state for marker in nodes}
    if missing or not nodes:
        states.add("running")
    state = next(state for state in _WORST_FIRST if state in states)
    return RunStatus(job_id=job_id, attempt=attempt, state=state, nodes=nodes, nodes_missing=missing)
