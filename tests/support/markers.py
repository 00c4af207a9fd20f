"""Node markers for tests: what the agents of a run would have written."""

from __future__ import annotations

from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import NodeStatus, State


def write_marker(
    run: RunDir,
    index: int,
    state: State,
    *,
    attempt: int = 0,
    lost: tuple[str, ...] = (),
    ended: int | None = None,
) -> None:
    """The marker of one node."""
    node = run.node(index)
    node.root.mkdir(parents=True, exist_ok=True)
    status = NodeStatus(
        node_index=index,
        host=f"host{index}",
        attempt=attempt,
        state=state,
        started_wall_ns=1,
        ended_wall_ns=ended,
        exit_code=0 if state == "completed" else 7,
        lost=list(lost),
    )
    write_json(node.status, status)
