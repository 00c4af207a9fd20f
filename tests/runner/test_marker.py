"""The marker of a node from start to end."""

from pathlib import Path

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import Scenario
from aorta.artefacts.records import NodeStatus
from aorta.runner.marker import Marker
from aorta.runner.options import NodeOptions


def test_it_says_that_traces_are_saved_between_the_ranks_end_and_its_own(tmp_path: Path) -> None:
    options = NodeOptions(
        scenario=Scenario("1node"),
        results=tmp_path,
        config=None,
        executor="local",
        job_id="j",
        node_index=0,
        nodes=1,
    )
    marker = Marker(options)
    path = options.run_dir.node(0).status
    path.parent.mkdir(parents=True)

    def seen() -> tuple[str, bool]:
        status = read_json(path, NodeStatus)
        return status.state, status.saving

    marker.begin()
    assert seen() == ("running", False)
    marker.saving()
    assert seen() == ("running", True)
    marker.end("completed", exit_code=0)
    assert seen() == ("completed", False)
