"""Changes of a capture as profilers, disks and people make them."""

from __future__ import annotations

import copy
import gzip
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.known_captures import BASE_NS, FAULTS, ORIGIN_US, RANKS, Event, Traces

Change = Callable[[Traces, Path], None]
"""Writes a changed capture into a folder."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change, and the faults that can still be seen in what it leaves."""

    name: str
    write: Change
    visible: tuple[str, ...] = tuple(FAULTS)


def write_all(traces: Traces, folder: Path) -> None:
    """Writes each rank's document."""
    for rank, document in traces.items():
        (folder / f"rank{rank}.json").write_text(json.dumps(document))


def each_event(
    change: Callable[[Event, int], Event | None], ranks: tuple[int, ...] = tuple(range(RANKS))
) -> Change:
    """Returns a change of every event of some ranks; an event that becomes None is removed."""

    def write(traces: Traces, folder: Path) -> None:
        for rank in ranks:
            made = (change(event, rank) for event in traces[rank]["traceEvents"])
            traces[rank]["traceEvents"] = [event for event in made if event is not None]
        write_all(traces, folder)

    return write


def is_nccl(event: Event) -> bool:
    """Returns True for a communication kernel."""
    return event["cat"] == "kernel" and "nccl" in event["name"]


def is_compute(event: Event) -> bool:
    """Returns True for a compute kernel."""
    return event["cat"] == "kernel" and not is_nccl(event)


def without(predicate: Callable[[Event], bool], **kw: Any) -> Change:
    """Returns a change that removes events."""
    return each_event(lambda event, _: None if predicate(event) else event, **kw)


def arguments(predicate: Callable[[Event], bool], *names: str) -> Change:
    """Returns a change that removes arguments of events."""

    def change(event: Event, _: int) -> Event:
        if predicate(event):
            event["args"] = {key: value for key, value in event["args"].items() if key not in names}
        return event

    return each_event(change)


def renamed(predicate: Callable[[Event], bool], field: str, value: str) -> Change:
    """Returns a change of a field of events."""
    return each_event(lambda event, _: {**event, field: value} if predicate(event) else event)


def shifted(predicate: Callable[[Event], bool], us: float, **kw: Any) -> Change:
    """Returns a change of the times of events."""
    return each_event(
        lambda event, _: {**event, "ts": round(event["ts"] + us, 3)} if predicate(event) else event, **kw
    )


def dropped(share: int, **kw: Any) -> Change:
    """Returns a change that drops every `share`-th compute kernel."""
    count = 0

    def drops(event: Event) -> bool:
        nonlocal count
        count += is_compute(event)
        return is_compute(event) and count % share == 0

    return without(drops, **kw)


def one_event(values: Event) -> Change:
    """Returns a change of one compute kernel in the middle of rank 0."""

    def write(traces: Traces, folder: Path) -> None:
        kernels = [event for event in traces[0]["traceEvents"] if is_compute(event)]
        kernels[len(kernels) // 2].update(values)
        write_all(traces, folder)

    return write


def lost_graphs(traces: Traces, folder: Path) -> None:
    """Launches of whole graphs whose kernels were not recorded."""
    for document in traces.values():
        lost = {
            event["args"]["correlation"]
            for event in document["traceEvents"]
            if is_compute(event) and event["name"] != "embedding"
        }
        kept = [
            event
            for event in document["traceEvents"]
            if not (is_compute(event) and event["args"]["correlation"] in lost)
        ]
        for event in kept:
            if event["cat"] == "cuda_runtime" and event["args"].get("correlation") in lost:
                event["name"] = "cudaGraphLaunch"
        document["traceEvents"] = kept
    write_all(traces, folder)


def merged(traces: Traces, folder: Path) -> None:
    """All ranks in one file, told by labels."""
    whole = copy.deepcopy(traces[0])
    whole["traceEvents"] = [
        {**event, "pid": f"[TP{rank:02d}] {event['pid']}"}
        for rank, document in traces.items()
        for event in document["traceEvents"]
    ]
    (folder / "merged.json").write_text(json.dumps(whole))


def pair_in_one_file(traces: Traces, folder: Path) -> None:
    """Two ranks in one file with nothing that tells them apart, the others as they were."""
    traces[0]["traceEvents"] += traces.pop(1)["traceEvents"]
    write_all(traces, folder)


def missing(*ranks: int) -> Change:
    """Returns a change that loses ranks' files."""
    return lambda traces, folder: write_all({r: d for r, d in traces.items() if r not in ranks}, folder)


def cut(share: float, *ranks: int) -> Change:
    """Returns a change that cuts files off."""

    def write(traces: Traces, folder: Path) -> None:
        write_all(traces, folder)
        for rank in ranks:
            path = folder / f"rank{rank}.json"
            text = path.read_text()
            path.write_text(text[: int(len(text) * share)])

    return write


def header(**fields: Any) -> Change:
    """Returns a change of what the header says of the job; None removes a key."""

    def write(traces: Traces, folder: Path) -> None:
        for document in traces.values():
            info = {**document["distributedInfo"], **fields}
            document["distributedInfo"] = {key: value for key, value in info.items() if value is not None}
        write_all(traces, folder)

    return write


def steps_left(count: int) -> Change:
    """Returns a change that keeps the first steps alone."""

    def write(traces: Traces, folder: Path) -> None:
        for document in traces.values():
            marks = sorted(e["ts"] for e in document["traceEvents"] if e["name"].startswith("ProfilerStep"))
            document["traceEvents"] = [e for e in document["traceEvents"] if e["ts"] < marks[count + 1] - 1]
        write_all(traces, folder)

    return write


def text(old: str, new: str) -> Change:
    """Returns a change of the text of the files."""

    def write(traces: Traces, folder: Path) -> None:
        write_all(traces, folder)
        for path in folder.iterdir():
            path.write_text(path.read_text().replace(old, new))

    return write


def beside(other: dict[str, Any]) -> Change:
    """Returns a change that puts the trace of another job into the folder."""

    def write(traces: Traces, folder: Path) -> None:
        write_all(traces, folder)
        document = {**copy.deepcopy(traces[0]), **other}
        (folder / "other.json").write_text(json.dumps(document))

    return write


def packed(traces: Traces, folder: Path) -> None:
    """Every file as a gzip file."""
    for rank, document in traces.items():
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))


def archived(traces: Traces, folder: Path) -> None:
    """All files in one archive."""
    with zipfile.ZipFile(folder / "traces.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for rank, document in traces.items():
            archive.writestr(f"rank{rank}.json", json.dumps(document))


def shuffled(traces: Traces, folder: Path) -> None:
    """The events in another order."""
    for document in traces.values():
        random.Random(1).shuffle(document["traceEvents"])
    write_all(traces, folder)


def renumbered(traces: Traces, folder: Path) -> None:
    """The files under other names than their ranks'."""
    for rank, document in traces.items():
        (folder / f"host{rank}_{900 - rank}.pt.trace.json").write_text(json.dumps(document))


def more(event: Event) -> Change:
    """Returns a change that adds an event that tells nothing to each rank."""

    def write(traces: Traces, folder: Path) -> None:
        for document in traces.values():
            document["traceEvents"] += [{"ph": "X", "pid": 1, "tid": 1, "ts": ORIGIN_US, "dur": 1.0, **event}]
        write_all(traces, folder)

    return write


def quoted(event: Event, _: int) -> Event:
    """The times of an event as text."""
    return {**event, "ts": str(event["ts"]), "dur": str(event["dur"])}


def on_gpu(event: Event) -> bool:
    """Returns True for work on the GPU."""
    return event["cat"] == "kernel"


def calls(event: Event) -> bool:
    """Returns True for driver calls."""
    return event["cat"] == "cuda_runtime"


HIDDEN: tuple[str, ...] = ()
"""The changes that leave no fault visible."""


def mutations() -> list[Mutation]:
    """Returns every change."""
    return [*_of_files_and_names(), *_of_times_and_calls()]


def _of_files_and_names() -> list[Mutation]:
    loader = ("straggler", "communication", "host_bound")
    return [
        Mutation("marks removed", without(lambda e: e["name"].startswith("ProfilerStep"))),
        Mutation("loader marks removed", without(lambda e: "DataLoader" in e["name"]), loader),
        Mutation("every third kernel dropped", dropped(3), HIDDEN),
        Mutation("every tenth kernel dropped", dropped(10), HIDDEN),
        Mutation("kernels of one rank dropped", without(is_compute, ranks=(1,)), HIDDEN),
        Mutation("one rank's file missing", missing(3), HIDDEN),
        Mutation("two ranks' files missing", missing(0, 3), HIDDEN),
        Mutation("a file cut at half", cut(0.5, 1), HIDDEN),
        Mutation("files cut near their end", cut(0.9, 0, 1, 2, 3)),
        Mutation("all ranks in one file", merged),
        Mutation("two ranks in one file", pair_in_one_file, HIDDEN),
        Mutation("communication renamed", renamed(is_nccl, "name", "kernel_3f2a"), HIDDEN),
        Mutation(
            "communication of another library",
            renamed(is_nccl, "name", "void deep_ep::internode::combine<8>(int4*)"),
        ),
        Mutation("sizes lost", arguments(is_nccl, "In msg nelems", "Out msg nelems", "dtype")),
        Mutation("groups and numbers lost", arguments(is_nccl, "Process Group Name", "Seq", "Group size")),
        Mutation("one rank's clock off", shifted(lambda _: True, 3_000_000.0, ranks=(1,))),
    ]


def _of_times_and_calls() -> list[Mutation]:
    sync = ("straggler", "data_loading", "communication")
    return [
        Mutation("GPU clock behind the host's", shifted(on_gpu, -60_000.0), HIDDEN),
        Mutation("GPU clock of one rank behind", shifted(on_gpu, -60_000.0, ranks=(2,)), HIDDEN),
        Mutation("graphs lost", lost_graphs, HIDDEN),
        Mutation("a kernel at zero", one_event({"ts": 0, "dur": 0})),
        Mutation("a kernel of eight days", one_event({"dur": 8 * 86400e6})),
        Mutation("a kernel before its launch", one_event({"ts": ORIGIN_US + 100})),
        Mutation("communication not recorded", without(is_nccl), HIDDEN),
        Mutation("communication of one rank not recorded", without(is_nccl, ranks=(2,)), HIDDEN),
        Mutation("launches not recorded", without(calls), HIDDEN),
        Mutation("correlations lost", arguments(on_gpu, "correlation"), HIDDEN),
        Mutation("synchronisation not recorded", without(lambda e: "Synchronize" in e["name"]), sync),
        Mutation("calls of an unknown platform", renamed(calls, "cat", "privateuse1_runtime")),
        Mutation("two steps left", steps_left(2), HIDDEN),
        Mutation("one step left", steps_left(1), HIDDEN),
        Mutation("another job's trace beside it", beside({"distributedInfo": {"rank": 0, "world_size": 2}})),
        Mutation("a trace of the day before", beside({"baseTimeNanoseconds": BASE_NS - 86_400_000_000_000})),
        Mutation("infinity in arguments", text('"grid": [8, 8, 1]', '"blocks per SM": inf')),
        Mutation("times as text", each_event(quoted)),
        Mutation("no world size", header(world_size=None)),
        Mutation("a world of more ranks", header(world_size=6), HIDDEN),
        Mutation("files packed", packed),
        Mutation("files in an archive", archived),
        Mutation("events in another order", shuffled),
        Mutation("files under other names", renumbered),
        Mutation(
            "kernels of unknown names", renamed(lambda e: e["name"].startswith("ampere"), "name", "k_9a1c")
        ),
        Mutation(
            "an event of an unknown category", more({"cat": "python_function", "name": "train.py(7): step"})
        ),
        Mutation(
            "an event of negative length", more({"cat": "kernel", "name": "k", "dur": -5.0, "args": {}})
        ),
        Mutation("an event without times", more({"cat": "kernel", "name": "k", "ts": None})),
        Mutation("streams lost", arguments(on_gpu, "stream")),
    ]
