"""Several ranks or GPUs in one file: split where that can be told, refused by name where not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.errors import ArtefactError
from aorta.readers.devices import OTHERS
from aorta.readers.traces import read_traces
from tests.support.kineto import event, write
from tests.support.nsys import Export

Events = list[dict[str, Any]]


def rank_events(rank: int, pid: Any, device: Any) -> Events:
    """Three kernels of 10 + rank µs, each launched 5 µs before it runs, and a step around them."""
    made: Events = [event("user_annotation", "ProfilerStep#1", 0.0, 400.0) | {"pid": pid}]
    for number in range(3):
        call = event("cuda_runtime", "cudaLaunchKernel", 100.0 * number + rank, 1.0, correlation=number + 1)
        ran = event(
            "kernel",
            f"gemm{rank}",
            100.0 * number + rank + 5,
            10.0 + rank,
            tid=7,
            device=rank,
            stream=7,
            correlation=number + 1,
        )
        made += [call | {"pid": pid}, ran | {"pid": device}]
    return made


def durations(path: Path) -> dict[int | None, set[int]]:
    return {
        trace.rank: set((trace.gpu.end_ns - trace.gpu.start_ns).tolist())
        for trace in read_traces([path]).traces
    }


@pytest.mark.parametrize("label", ["[TP{:02d}] ", "[rank{}] ", "rank {} "])
def test_labels_of_processes_tell_the_ranks(tmp_path: Path, label: str) -> None:
    events = [
        one
        for rank in (2, 0, 1)
        for one in rank_events(rank, label.format(rank) + "1", label.format(rank) + "0")
    ]
    path = write(tmp_path / "merged.json", events, distributedInfo={"rank": 0, "world_size": 3})
    assert durations(path) == {rank: {(10 + rank) * 1000} for rank in range(3)}


def test_labels_of_several_axes_are_numbered_in_order(tmp_path: Path) -> None:
    labels = ["[TP00-PP00] 1", "[TP00-PP01] 1", "[TP01-PP00] 1", "[TP01-PP01] 1"]
    events = [one for rank, label in enumerate(labels) for one in rank_events(rank, label, label)]
    assert durations(write(tmp_path / "merged.json", events)) == {
        rank: {(10 + rank) * 1000} for rank in range(4)
    }


def test_processes_tell_the_ranks_where_their_devices_differ(tmp_path: Path) -> None:
    events = [one for rank in (1, 0) for one in rank_events(rank, 500 - rank, rank)]
    assert durations(write(tmp_path / "merged.json", events)) == {0: {10_000}, 1: {11_000}}


@pytest.mark.parametrize("order", [sorted, lambda keys: sorted(keys, reverse=True), lambda keys: keys[::-1]])
def test_the_keys_of_an_event_stand_in_any_order(
    tmp_path: Path, order: Callable[[list[str]], list[str]]
) -> None:
    events = [one for rank in (1, 0) for one in rank_events(rank, 500 - rank, rank)]
    moved = [{key: one[key] for key in order([*one])} for one in events]
    assert durations(write(tmp_path / "merged.json", moved)) == {0: {10_000}, 1: {11_000}}


def test_processes_that_share_a_device_are_refused_by_name(tmp_path: Path) -> None:
    events = [one for rank in range(2) for one in rank_events(rank, 500 + rank, 0)]
    with pytest.raises(ArtefactError, match="several processes, and their GPU events cannot be told apart"):
        read_traces([write(tmp_path / "merged.json", events)])


def test_one_process_with_several_gpus_is_a_trace_for_each(tmp_path: Path) -> None:
    events = [one for rank in range(2) for one in rank_events(rank, 1, rank)]
    for number, one in enumerate(events):
        one["args"] = one["args"] | {"correlation": number}
    path = write(tmp_path / "t.json", events)
    assert durations(path) == {0: {10_000}, 1: {11_000}}
    assert [[item.reason for item in trace.unseen] for trace in read_traces([path]).traces] == [
        [OTHERS],
        [OTHERS],
    ]


def test_a_rank_with_several_gpus_names_what_is_not_counted(tmp_path: Path) -> None:
    events = [one for rank in range(2) for one in rank_events(rank, 1, rank)]
    for number, one in enumerate(events):
        one["args"] = one["args"] | {"correlation": number}
    found = read_traces([write(tmp_path / "t.json", events, distributedInfo={"rank": 3, "world_size": 8})])
    assert [trace.rank for trace in found.traces] == [3]
    assert "3 GPU events of device 1 not counted" in found.traces[0].problems[0].reason


def test_whole_traces_of_one_rank_are_not_split(tmp_path: Path) -> None:
    path = write(tmp_path / "rank1.json", rank_events(1, 77, 1))
    (trace,) = read_traces([path]).traces
    assert (trace.rank, trace.notes, trace.problems, trace.unseen) == (1, (), (), ())


def test_a_gpu_process_that_is_no_rank_does_not_cost_the_ranks(tmp_path: Path) -> None:
    kernels = [
        (100, 200, 0, 7, 1, 50, "gemm"),
        (100, 300, 1, 7, 1, 51, "gemm"),
        (5, 9, 0, 7, 1, 99, "display"),
    ]
    ranges = [(0, 400, 50, "step 1", 59), (0, 400, 51, "step 1", 59)]
    found = read_traces([Export(kernels=kernels, ranges=ranges).write(tmp_path / "job.sqlite")])
    assert {trace.rank: len(trace.gpu) for trace in found.traces} == {0: 1, 1: 1}
    assert "1 GPU event of process 99 left out" in " ".join(item.reason for item in found.problems)


def test_a_file_that_a_reader_fails_on_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write(tmp_path / "rank0.json", rank_events(0, 1, 0))
    Export(kernels=[(1, 2, 0, 7, 1, 50, "k")]).write(tmp_path / "rank1.sqlite")

    def fails(_: Path) -> None:
        raise IndexError("row 7")

    monkeypatch.setattr("aorta.readers.nsys.read", fails)
    found = read_traces([tmp_path])
    assert [trace.source for trace in found.traces] == [str(good)]
    assert "IndexError: row 7" in found.problems[0].reason
    assert json.dumps([problem.file for problem in found.problems])
