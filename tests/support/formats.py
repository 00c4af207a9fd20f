"""The job of `traced` as nsys exports and as CSV files of rocprofv3."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.nsys import Export
from tests.support.traced import Job, write_job

Event = dict[str, Any]
Change = Callable[[int, Event], Event | None]
"""What becomes of an event of a rank; None: it is lost."""
KERNEL_COLUMNS = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,"
    "Start_Timestamp,End_Timestamp"
).split(",")
CALL_COLUMNS = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp".split(",")


def as_kineto(folder: Path, job: Job, change: Change = lambda _, event: event) -> Path:
    """`rank<r>.pt.trace.json` in `folder`, with changed events."""
    for path, rank, document in _documents(folder, job):
        kept = [made for event in document["traceEvents"] if (made := change(rank, event)) is not None]
        path.write_text(json.dumps(document | {"traceEvents": kept}))
    return folder


def as_nsys(folder: Path, job: Job, change: Change = lambda _, event: event) -> Path:
    """`rank<r>.sqlite` in `folder`."""
    for path, rank, document in _documents(folder, job):
        path.unlink()
        made = Export(epoch_ns=document["baseTimeNanoseconds"])
        for event in document["traceEvents"]:
            one = change(rank, event)
            if one is not None:
                _add(made, rank, one)
        made.write(folder / f"rank{rank}.sqlite")
    return folder


def _add(made: Export, rank: int, event: Event) -> None:
    start, end = _ns(event)
    args = event.get("args", {})
    if event["cat"] == "kernel":
        row = (start, end, rank, args["stream"], args["correlation"], 100 + rank, event["name"])
        made.kernels.append(row)
    elif event["cat"] == "cuda_runtime":
        made.calls.append((start, end, 100 + rank, event["name"], args.get("correlation", 0)))
    else:
        made.ranges.append((start, end, 100 + rank, event["name"], 59))


def as_rocprof(
    folder: Path, job: Job, change: Change = lambda _, event: event, *, calls: bool = True
) -> Path:
    """`rank<r>_*_trace.csv` in `folder`; without `calls` no HIP calls were traced."""
    for path, rank, document in _documents(folder, job):
        path.unlink()
        kernels, api, marks = [], [], []
        for index, event in enumerate(document["traceEvents"]):
            one = change(rank, event)
            if one is None:
                continue
            (start, end), args = _ns(one), one.get("args", {})
            if one["cat"] == "kernel":
                row = ["KERNEL_DISPATCH", f"Agent {4 + rank}", 1, args["stream"], 77, index, 10, one["name"]]
                kernels.append([*row, args["correlation"], start, end])
            elif one["cat"] == "cuda_runtime":
                name = one["name"].replace("cuda", "hip")
                row = ["HIP_RUNTIME_API", name, 100, 77, args.get("correlation", 0)]
                api.append([*row, start, end])
            else:
                marks.append(["MARKER_CORE_API", one["name"], 100, 77, index, start, end])
        _write(folder / f"rank{rank}_kernel_trace.csv", KERNEL_COLUMNS, kernels)
        _write(folder / f"rank{rank}_marker_api_trace.csv", CALL_COLUMNS, marks)
        if calls:
            _write(folder / f"rank{rank}_hip_api_trace.csv", CALL_COLUMNS, api)
    return folder


def _documents(folder: Path, job: Job) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    folder.mkdir(parents=True, exist_ok=True)
    write_job(folder, job)
    for rank in job.ranks:
        path = folder / f"rank{rank}.pt.trace.json"
        yield path, rank, json.loads(path.read_text())


def _ns(event: Event) -> tuple[int, int]:
    start = round(float(event["ts"]) * 1000)
    return start, start + round(float(event["dur"]) * 1000)


def _write(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
