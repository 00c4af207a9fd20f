"""How nodes find each other: preparing, moving earlier attempts aside, gathering, publishing."""

from __future__ import annotations

import msgspec
import pytest

from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import flat_alias
from aorta.artefacts.records import NodeStatus, ProfilerChoice, RunStatus, Session
from aorta.errors import RunError
from aorta.runner import session
from aorta.runner.marker import Marker
from tests.runner.test_command import manifest, options
from tests.runner.test_network import node


def never():
    return False


def prepared(tmp_path, **changes):
    first = options(tmp_path, node_index=0, **changes)
    return first, session.prepare(first)


def test_node_0_makes_the_directory_and_tells_the_others(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    first, word = prepared(tmp_path, script=script)
    assert (word.stage, word.attempt) == ("gather", 3)
    assert session.join(options(tmp_path), 0, never) == word
    assert first.run_dir.script.read_text() == "#!/bin/sh\n"


def test_a_family_gets_its_short_path_as_a_relative_link(tmp_path):
    first, _ = prepared(tmp_path)
    alias = flat_alias(tmp_path, first.scenario, "j7")
    assert str(alias.readlink()) == "cpu_2node/run_j7"
    assert alias.resolve() == first.run_dir.root.resolve()


def test_something_else_under_the_short_name_is_left_alone(tmp_path):
    alias = tmp_path / "cpu_2node_j7"
    alias.write_text("mine")
    prepared(tmp_path)
    assert alias.read_text() == "mine"


def test_an_existing_empty_directory_is_taken(tmp_path):
    options(tmp_path).run_dir.root.mkdir(parents=True)
    first, _ = prepared(tmp_path)
    assert not [path for path in first.run_dir.root.iterdir() if path.name.startswith("attempt_")]


def test_an_earlier_attempt_moves_aside_whole(tmp_path):
    old, _ = prepared(tmp_path, attempt=0)
    write_json(old.run_dir.manifest, msgspec.structs.replace(manifest([node(0)]), attempt=0))
    old.run_dir.records(0).write_text("{}\n")
    Marker(old).begin()
    new, word = prepared(tmp_path, attempt=1)
    assert word.attempt == 1
    kept = new.run_dir.attempt(0)
    assert sorted(path.name for path in kept.iterdir()) == [
        "manifest.json", "nodes", "rank_0_metrics.jsonl", "session.json",
    ]  # fmt: skip
    assert sorted(path.name for path in new.run_dir.root.iterdir()) == ["attempt_0", "session.json"]
    newest, _ = prepared(tmp_path, attempt=2)
    assert sorted(path.name for path in newest.run_dir.root.iterdir()) == [
        "attempt_0",
        "attempt_1",
        "session.json",
    ]


def test_a_move_that_was_cut_off_is_continued_but_nothing_is_overwritten(tmp_path):
    old, _ = prepared(tmp_path, attempt=0)
    old.run_dir.records(0).write_text("new\n")
    kept = old.run_dir.attempt(0)
    kept.mkdir()
    (kept / "config.yaml").write_text("moved before\n")
    prepared(tmp_path, attempt=1)
    assert sorted(path.name for path in kept.iterdir()) == [
        "config.yaml",
        "rank_0_metrics.jsonl",
        "session.json",
    ]
    old.run_dir.attempt(1).mkdir()
    (old.run_dir.attempt(1) / "session.json").write_text("{}")
    with pytest.raises(RunError, match=r"attempt_1/session.json exists already"):
        prepared(tmp_path, attempt=2)


def test_a_word_of_an_earlier_attempt_is_never_obeyed(tmp_path):
    first, word = prepared(tmp_path, attempt=0)
    write_json(first.run_dir.session, msgspec.structs.replace(word, stage="start"))
    assert session.read_session(first.run_dir, 0) is not None
    assert session.read_session(first.run_dir, 1) is None
    with pytest.raises(RunError, match=r"node 0 did not prepare .* within 0 s"):
        session.join(options(tmp_path, attempt=1), 0, never)


def test_the_same_attempt_is_refused_on_every_node(tmp_path):
    first, _ = prepared(tmp_path)
    second = options(tmp_path)
    Marker(first).begin()
    Marker(second).begin()
    for call in (lambda: session.prepare(first), lambda: session.join(second, 0, never)):
        with pytest.raises(RunError, match="already contains attempt 3 of job j7"):
            call()


def test_an_unwritable_folder_says_so(tmp_path):
    (tmp_path / "cpu_2node").write_text("a file")
    with pytest.raises(RunError, match="cannot prepare"):
        prepared(tmp_path)


def test_gather_takes_this_attempts_nodes_and_leaves_the_missing_out(tmp_path):
    first, _ = prepared(tmp_path, nodes=3)
    own = node(0, attempt=3)
    write_json(first.run_dir.node(1).info, node(1, attempt=2))
    write_json(first.run_dir.node(2).info, node(2, attempt=3))
    found = session.gather(first, own, 0, never)
    assert [item.node_index for item in found] == [0, 2]
    assert session.objection(found, 3, 9) == "node 1 of 3 did not report within 9 s"
    write_json(first.run_dir.node(1).info, node(1, attempt=3))
    found = session.gather(first, own, 0, never)
    assert [item.node_index for item in found] == [0, 1, 2]
    assert session.objection(found, 3, 9) is None


def test_nodes_that_differ_do_not_start():
    nodes = [node(0, host="a", processes=4), node(1, host="b", processes=2)]
    reason = session.objection(nodes, 2, 9)
    assert reason is not None
    assert "node 0 (a) 4, node 1 (b) 2" in reason
    nsys = ProfilerChoice(requested="auto", resolved="nsys", reason="")
    assert "profilers: none, nsys" in str(session.objection([node(0), node(1, profiler=nsys)], 2, 9))


def test_the_word_to_start_counts_ranks_from_node_0():
    word = Session(attempt=0, token="t", stage="gather")
    start = session.start_word(word, [node(0, processes=2), node(1, processes=2)])
    assert (start.stage, start.first_rank, start.world_size) == ("start", [0, 2], 4)
    assert start.master_address == "127.0.0.1"
    assert start.master_port is not None
    assert start.token == "t"


def test_an_abort_reaches_the_waiting_with_its_reason(tmp_path):
    first, word = prepared(tmp_path)
    write_json(first.run_dir.session, session.abort_word(word, "node 1 is missing"))
    with pytest.raises(RunError, match="node 1 is missing"):
        session.await_start(options(tmp_path), 0, never)


def test_waiting_ends_with_a_signal(tmp_path):
    prepared(tmp_path)
    with pytest.raises(session.InterruptedWait):
        session.await_start(options(tmp_path), 60, lambda: True)


def test_markers_are_merged_by_whoever_ends(tmp_path):
    first, _ = prepared(tmp_path)
    second = options(tmp_path)
    one, two = Marker(first), Marker(second)
    one.begin()
    two.begin()
    assert not first.run_dir.status.exists()
    one.end("completed", exit_code=0)
    assert read_json(first.run_dir.status, RunStatus).state == "running"
    two.lost.append("everything")
    two.end("failed", exit_code=7, signal="SIGTERM")
    merged = read_json(first.run_dir.status, RunStatus)
    assert (merged.state, merged.attempt, merged.nodes_missing) == ("failed", 3, [])
    last = merged.nodes[1]
    assert (last.exit_code, last.signal, last.lost) == (7, "SIGTERM", ["everything"])
    assert last.ended_wall_ns is not None
    assert last.ended_wall_ns >= last.started_wall_ns


def test_a_node_that_never_came_is_named(tmp_path):
    first, _ = prepared(tmp_path)
    Marker(first).end("failed", exit_code=5)
    assert read_json(first.run_dir.status, RunStatus).nodes_missing == [1]
    assert read_json(first.run_dir.node(0).status, NodeStatus).state == "failed"


def test_a_running_node_keeps_room_for_its_last_word(tmp_path):
    first, _ = prepared(tmp_path)
    reserve = first.run_dir.node(0).reserve
    marker = Marker(first)
    marker.begin()
    assert reserve.stat().st_size == 256 * 1024
    marker.end("completed", exit_code=0)
    assert not reserve.exists()
