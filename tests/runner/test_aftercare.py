"""Traces of a node after training: within the time there is, and never silent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from aorta.artefacts.layout import Scenario
from aorta.runner.aftercare import Aftercare
from aorta.runner.captures import TempSpace
from aorta.runner.first_rank import command
from aorta.runner.options import NodeOptions, TimeLimits
from aorta.units import NS_PER_S
from tests.runner.test_export import make
from tests.runner.test_processes import gone, until
from tests.support import disk


class Node:
    """Aftercare whose commands are a shell script that gets the command's name as $3."""

    def __init__(self, folder, monkeypatch, script, **limits):
        self.folder = folder
        program = folder / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        options = NodeOptions(
            scenario=Scenario("1node"), results=folder, config=None, executor="local", job_id="j",
            node_index=0, nodes=1,
        )  # fmt: skip
        self.run = options.run_dir.root
        self.interrupts = SimpleNamespace(received=None)
        self.said = []
        self.care = Aftercare(options, TimeLimits(**limits), self.interrupts, lambda: None, self.said.append)

    def reduce(self, ends=None, profiler="nsys"):
        return self.care.reduce(profiler, {"PATH": "/usr/bin:/bin"}, ends)


def test_both_commands_run_and_what_they_lost_is_told(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, 'echo "progress"; echo "lost: half of $3"')
    assert node.reduce() == ["half of export-traces", "half of reduce"]
    assert (node.run / "nodes/node0/logs/reduce.log").read_text() == "progress\nlost: half of reduce\n"


def test_without_a_profiler_only_the_traces_of_torch_are_reduced(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, 'echo "lost: $3"')
    assert node.reduce(profiler="none") == ["reduce"]


def test_a_failure_is_told_with_its_last_words(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, '[ "$3" = reduce ] || { echo "aorta: no space"; exit 4; }')
    assert node.reduce() == ["aorta export-traces failed with 4: aorta: no space"]


def test_the_reason_is_told_where_the_log_holds_nothing(tmp_path, monkeypatch):
    script = 'echo "lost: half of $3"; [ "$3" = reduce ] || { echo "aorta: no space" >&2; exit 5; }'
    node = Node(tmp_path, monkeypatch, script)
    logs = node.run / "nodes/node0/logs"
    logs.mkdir(parents=True)
    for name in ("export-traces", "reduce"):
        (logs / f"{name}.log").symlink_to("/dev/null")
    assert node.reduce() == [
        "half of export-traces",
        "aorta export-traces failed with 5: aorta: no space",
        "half of reduce",
    ]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 512 KiB."""
    with disk.small_disk(tmp_path / "disk", "512k") as folder:
        yield folder


@pytest.mark.parametrize("exported", [True, False])
def test_a_full_disk_is_named_as_the_reason(small_disk, tmp_path, exported):
    made = f'while [ "$1" != --output ]; do shift; done; cat {tmp_path}/disk/made.sqlite > "$2"'
    run = make(small_disk, made)
    options = NodeOptions(
        scenario=Scenario("1node"), results=small_disk, config=None, executor="local", job_id="j",
        node_index=0, nodes=1,
    )  # fmt: skip
    options.run_dir.root.parent.mkdir(parents=True)
    run.root.rename(options.run_dir.root)
    logs = options.run_dir.node(0).logs
    logs.mkdir(parents=True)
    if exported:
        (options.run_dir.nsys_reports / "x_rank0_h_1.nsys-rep").write_text("report")
    with (small_disk / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))
    care = Aftercare(options, TimeLimits(), SimpleNamespace(received=None), lambda: None, lambda line: None)
    lost = care.reduce("nsys", dict(os.environ), None)
    assert any(
        line.startswith("aorta export-traces failed with 5: ") and "No space left on device" in line
        for line in lost
    ), lost
    of_report = [line for line in lost if line.startswith("export of x_rank0_h_1.nsys-rep: ")]
    assert len(of_report) == exported
    assert all("No space left on device" in line for line in of_report)


def test_what_takes_too_long_is_ended_with_what_it_started(tmp_path, monkeypatch):
    script = f'[ "$3" = reduce ] || {{ sleep 1000 & echo $! > {tmp_path}/pid; wait; }}'
    node = Node(tmp_path, monkeypatch, script, export_s=0.5)
    (lost,) = node.reduce()
    assert (
        lost
        == f"aorta export-traces was ended after 0 s; by hand, run aorta export-traces {node.run} --node 0"
    )
    until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_a_job_without_time_left_runs_nothing(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, "exit 9")
    lost = node.reduce(ends=time.time_ns() + 5 * NS_PER_S)
    assert [line.split(":")[0] for line in lost] == [
        "aorta export-traces did not run",
        "aorta reduce did not run",
    ]
    assert "by hand, run aorta reduce" in lost[1]


def test_a_signal_ends_it(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, "sleep 1000")
    node.care._tick = lambda: setattr(node.interrupts, "received", signal.SIGTERM)
    first, second = node.reduce()
    assert first.startswith("aorta export-traces was ended with the job")
    assert second.startswith("aorta reduce did not run")


def test_a_cancelled_job_is_told_what_to_do_by_hand(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, "")
    assert node.care.by_hand("nsys").endswith(
        f"to reduce them by hand, run aorta export-traces {node.run} --node 0; "
        f"aorta reduce {node.run} --node 0"
    )


def test_a_full_temporary_folder_is_among_the_findings(tmp_path, monkeypatch):
    node = Node(tmp_path, monkeypatch, "")
    monkeypatch.setattr(TempSpace, "_free", lambda self: 0)
    (said,) = node.care.check(tmp_path, "x", [], TempSpace(tmp_path))
    assert said.startswith(f"{tmp_path} was full (0 MiB free)")


@pytest.mark.parametrize(
    ("rank", "expected"),
    [("0", ["nsys", "profile", "--a", "-o", "x"]), ("1", ["nsys", "profile", "-o", "x"])],
)
def test_local_rank_0_gets_more_options(rank, expected):
    assert command(["1", "--a", "nsys", "profile", "-o", "x"], rank) == expected
