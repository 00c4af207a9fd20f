"""`aorta timeline`: everything of every rank on one clock, in a file that a strict reader takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from aorta.cli import group
from aorta.errors import ArtefactError
from aorta.report.chrome import lanes, us
from tests.support.chrome import _nest, checked, load, ns
from tests.support.kineto import kernel, write
from tests.support.nsys import Export
from tests.support.synthetic import START_WALL_NS, RunSpec, write_run
from tests.support.traced import BASE_NS, ORIGIN, Job, Rank, write_job


def timeline(*paths: Path, output: Path) -> Result:
    return CliRunner().invoke(group, ["timeline", *map(str, paths), "-o", str(output)])


def made(*paths: Path, output: Path) -> list[dict[str, Any]]:
    done = timeline(*paths, output=output)
    assert done.exit_code == 0, (done.output, done.exception)
    return checked(output)


def processes(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def named(events: list[dict[str, Any]], process: str, name: str) -> list[dict[str, Any]]:
    names = processes(events)
    return [e for e in events if e["ph"] == "X" and names[e["pid"]] == process and e["name"] == name]


def test_clocks_of_ranks_are_aligned_by_the_ends_of_their_collectives(tmp_path: Path) -> None:
    # The clock of rank 1 is 777 µs ahead; it computes longer.
    job = Job({0: Rank(), 1: Rank(compute=1600, clock=777)})
    events = made(write_job(tmp_path / "traces", job), output=tmp_path / "t.json.gz")
    assert list(processes(events).values()) == ["rank 0", "rank 1"]
    for step in range(6):
        ends = [
            ns(one["ts"]) + ns(one["dur"])
            for r in (0, 1)
            for one in [named(events, f"rank {r}", "adam")[step]]
        ]
        assert ends[0] == ends[1]
    first = named(events, "rank 0", "gemm")[0]
    base = load(tmp_path / "t.json.gz")["baseTimeNanoseconds"]
    # Nothing of rank 0 moves: the kernel starts with the capture.
    assert base + ns(first["ts"]) == BASE_NS + ORIGIN * 1000
    assert ns(first["dur"]) == 1_000_000


def test_launches_point_to_what_they_launched(tmp_path: Path) -> None:
    events = made(write_job(tmp_path / "traces", Job({0: Rank()})), output=tmp_path / "t.json")
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    kernels = [e for e in events if e["ph"] == "X" and e["cat"] in ("compute", "communication")]
    assert len(starts) == len(ends) == len(kernels)
    assert {(e["tid"], e["ts"]) for e in ends.values()} == {(e["tid"], e["ts"]) for e in kernels}


def test_a_run_without_traces_shows_its_records_and_counters(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, clock_offset_ns={1: 50_000_000}))
    events = made(run.root, output=tmp_path / "t.json.gz")
    steps = {r: named(events, f"rank {r}", "step 20") for r in range(4)}
    assert all(len(found) == 1 for found in steps.values())
    # The second node's clocks are 50 ms ahead, which their collectives show.
    assert abs(ns(steps[0][0]["ts"]) - ns(steps[2][0]["ts"])) < 1_000_000
    assert named(events, "rank 0", "data")
    counters = Counter(e["name"] for e in events if e["ph"] == "C")
    assert counters["CPU"] > 0
    assert {e["args"]["%"] for e in events if e["name"] == "CPU"} != {0}


def test_steps_timed_as_a_whole_have_their_place_and_no_ranges(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, detail=(5, 20), clock_offset_ns={1: 50_000_000}))
    events = made(run.root, output=tmp_path / "t.json.gz")
    # Of the steps 10 to 39, those from 10 to 14 and from 30 to 34 are detailed; each loads once.
    assert len(named(events, "rank 0", "data")) == 10
    for number, timed in ((12, None), (20, "as a whole")):
        (first,), (second,) = (named(events, f"rank {r}", f"step {number}") for r in (0, 2))
        assert first["args"].get("timed") == timed
        # By the collectives of the detailed steps, the second node's clocks are known to be 50 ms ahead.
        assert abs(ns(first["ts"]) - ns(second["ts"])) < 1_000_000


def test_a_run_without_a_detailed_step_keeps_its_clocks(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, detail=(0, 20)))
    done = timeline(run.root, output=tmp_path / "t.json")
    assert done.exit_code == 0, done.output
    assert "wall clocks as recorded, because the records contain no collectives" in done.output


def test_a_run_with_traces_shows_both(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    write_job(run.torch_profiler, Job({0: Rank(), 1: Rank()}))
    events = made(run.root, output=tmp_path / "t.json.gz")
    assert named(events, "rank 1", "gemm")
    assert named(events, "rank 1", "step 20")
    assert any(e["name"].endswith("power") and "W" in e["args"] for e in events if e["ph"] == "C")


def test_ranges_of_a_capture_without_a_gpu_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.nsys.mkdir()
    for rank in (0, 1):
        export = Export(epoch_ns=START_WALL_NS)
        export.ranges += [(1000 + rank, 5000, 9, "aorta.step", 59), (2000, 3000, 9, "aorta.data", 59)]
        export.write(run.nsys / f"x_rank{rank}_host_9.sqlite")
    events = made(run.root, output=tmp_path / "t.json.gz")
    for rank in (0, 1):
        (step,), (data,) = (named(events, f"rank {rank}", name) for name in ("aorta.step", "aorta.data"))
        assert (ns(step["dur"]), ns(data["dur"])) == (4000 - rank, 1000)
        assert ns(data["ts"]) - ns(step["ts"]) == 1000 - rank
    assert named(events, "rank 0", "step 20")


def test_kernels_that_overlap_on_one_stream_go_to_lanes(tmp_path: Path) -> None:
    overlapping = [
        kernel("a", 100, 50, stream=7),
        kernel("b", 120, 60, stream=7),
        kernel("c", 130, 5, stream=7),
    ]
    write(tmp_path / "rank0.json", overlapping)
    events = made(tmp_path / "rank0.json", output=tmp_path / "t.json")
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["name"]: threads[e["tid"]] for e in events if e["ph"] == "X"} == {
        "a": "GPU 0 stream 7",
        "b": "GPU 0 stream 7 (2)",
        "c": "GPU 0 stream 7",
    }


def test_names_are_data(tmp_path: Path) -> None:
    name = 'k"},\n{"ph":"X<script>'
    write(tmp_path / "rank0.json", [kernel(name, 100, 50)])
    events = made(tmp_path / "rank0.json", output=tmp_path / "t.json")
    assert [e["name"] for e in events if e["ph"] == "X"] == [name]


def test_what_holds_no_time_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "in", tmp_path / "absent"):
        done = timeline(path, output=tmp_path / "t.json")
        assert isinstance(done.exception, ArtefactError)
    assert not (tmp_path / "t.json").exists()
    job = write_job(tmp_path / "traces", Job({0: Rank()}))
    unwritable = timeline(job, output=Path("/proc/t.json"))
    assert isinstance(unwritable.exception, ArtefactError)


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0.000"), (1, "0.001"), (1_234_567, "1234.567"), (-5, "-0.005")]
)
def test_microseconds_keep_every_nanosecond(value: int, expected: str) -> None:
    assert us(value) == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_slices_of_a_lane_nest_or_follow(pairs: list[tuple[int, int]]) -> None:
    spans = sorted(((start, start + length) for start, length in pairs), key=lambda span: (span[0], -span[1]))
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    found = lanes(table[:, 0], table[:, 1])
    for lane in set(found):
        _nest([span for span, own in zip(spans, found, strict=True) if own == lane])
