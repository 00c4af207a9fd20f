"""Captures with a known fault, damaged in many ways: none may be called healthy.

    python benchmarks/no_false_healthy.py [--only TEXT] [--keep FOLDER]

Four ranks with 32 steps are made for each fault (a slow rank, slow loaders, slow exchange, a slow host) and
for balanced work. Each is changed as profilers, disks and people do it: marks removed, kernels dropped,
files missing, cut or merged, communication renamed, sizes lost, clocks shifted, graphs not recorded,
impossible events, sends removed.

Of the faulty ones none may be healthy, and none may have another cause with high confidence. Of the changes
that leave the cause visible, four fifths must name it. Of the balanced ones none may have a bottleneck, and
three quarters must be healthy. The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.errors import ArtefactError
from aorta.report.confidence import confidence

RANKS, STEPS, KERNELS = 4, 32, 24
ORIGIN_US = 5_000_000.0
BASE_NS = 1_790_000_000_000_000_000
LEAST_HEALTHY = 0.75
"""Share of the balanced captures: of the changes a quarter take away what a healthy verdict needs."""
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SILENT = ("insufficient_data", "incomplete")
Event = dict[str, Any]
Traces = dict[int, dict[str, Any]]
"""Kineto documents by rank."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step of each rank, µs."""

    kernel: float = 1000.0
    slow_rank: int | None = None
    slow_kernel: float = 420.0
    loader: float = 200.0
    gap: float = 0.0
    """Host work before each launch, in which the GPU idles."""
    transfer: float = 800.0


FAULTS: dict[str, Work] = {
    "straggler": Work(slow_rank=2),
    "data_loading": Work(loader=30_000.0),
    "communication": Work(transfer=9_000.0),
    "host_bound": Work(kernel=300.0, gap=900.0),
}
BALANCED = {"plain": Work(), "long kernels": Work(kernel=4000.0)}


# --- captures ----------------------------------------------------------------------------------------------


def capture(work: Work) -> Traces:
    """Returns a document for each rank."""
    return {rank: _document(work, rank) for rank in range(RANKS)}


def _document(work: Work, rank: int) -> dict[str, Any]:
    events: list[Event] = []
    each = {r: work.kernel + (work.slow_kernel if r == work.slow_rank else 0.0) for r in range(RANKS)}
    longest = max(each.values())
    step_us = work.loader + KERNELS * (longest + work.gap) + 3 * work.transfer + 400.0
    for step in range(STEPS + 1):
        _step(events, work, (rank, step), (each[rank], longest, step_us))
    info = {"backend": "nccl", "rank": rank, "world_size": RANKS}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
    }


def _step(
    events: list[Event], work: Work, place: tuple[int, int], lengths: tuple[float, float, float]
) -> None:
    (rank, step), (each, longest, step_us) = place, lengths
    start = ORIGIN_US + step * step_us
    number = step * (KERNELS + 4) + 1

    def host(cat: str, name: str, at: float, us: float, **args: Any) -> None:
        events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 100 + rank,
                "tid": 10,
                "ts": round(at, 3),
                "dur": round(us, 3),
                "args": args,
            }
        )

    def gpu(name: str, at: float, us: float, stream: int, correlation: int, **args: Any) -> None:
        found = {"device": rank, "stream": stream, "correlation": correlation, **args}
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": rank,
                "tid": stream,
                "ts": round(at, 3),
                "dur": round(us, 3),
                "args": found,
            }
        )

    host("user_annotation", f"ProfilerStep#{step}", start, step_us - 20)
    host(
        "user_annotation",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        start + 5,
        work.loader - 10,
    )
    at = start + work.loader
    names = ["embedding", *["ampere_gemm_128x128", "softmax_warp"] * 11, "adam"]
    for index, name in enumerate(names):
        at += work.gap
        launch = at - 12 if work.gap else start + work.loader - 190 + index * 6
        host("cuda_runtime", "cudaLaunchKernel", launch, 4.0, correlation=number)
        gpu(name, at, each - 2, 7, number, grid=[8, 8, 1], block=[128, 1, 1])
        at, number = at + each, number + 1
    begin = start + work.loader + KERNELS * (longest + work.gap)
    for call in range(3):
        ready = at if call == 0 else begin + call * work.transfer
        end = begin + (call + 1) * work.transfer - 5
        host(
            "cuda_runtime",
            "cudaLaunchKernelExC",
            start + work.loader - 20 + call * 5,
            4.0,
            correlation=number,
        )
        sized = {
            "Collective name": "allreduce",
            "In msg nelems": 4_000_000,
            "Out msg nelems": 4_000_000,
            "Group size": RANKS,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Seq": step * 3 + call,
        }
        gpu(NCCL, ready, end - ready, 20, number, **sized)
        number += 1
    wait = start + work.loader + 5
    host("cuda_runtime", "cudaStreamSynchronize", wait, begin + 3 * work.transfer - wait, correlation=number)


# --- changes -----------------------------------------------------------------------------------------------


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


def mutations() -> list[Mutation]:
    """Returns every change."""
    hidden: tuple[str, ...] = ()
    loader = ("straggler", "communication", "host_bound")
    sync = ("straggler", "data_loading", "communication")
    return [
        Mutation("marks removed", without(lambda e: e["name"].startswith("ProfilerStep"))),
        Mutation("loader marks removed", without(lambda e: "DataLoader" in e["name"]), loader),
        Mutation("every third kernel dropped", dropped(3), hidden),
        Mutation("every tenth kernel dropped", dropped(10), hidden),
        Mutation("kernels of one rank dropped", without(is_compute, ranks=(1,)), hidden),
        Mutation("one rank's file missing", missing(3), hidden),
        Mutation("two ranks' files missing", missing(0, 3), hidden),
        Mutation("a file cut at half", cut(0.5, 1), hidden),
        Mutation("files cut near their end", cut(0.9, 0, 1, 2, 3)),
        Mutation("all ranks in one file", merged),
        Mutation("two ranks in one file", pair_in_one_file, hidden),
        Mutation("communication renamed", renamed(is_nccl, "name", "kernel_3f2a"), hidden),
        Mutation(
            "communication of another library",
            renamed(is_nccl, "name", "void deep_ep::internode::combine<8>(int4*)"),
        ),
        Mutation("sizes lost", arguments(is_nccl, "In msg nelems", "Out msg nelems", "dtype")),
        Mutation("groups and numbers lost", arguments(is_nccl, "Process Group Name", "Seq", "Group size")),
        Mutation("one rank's clock off", shifted(lambda _: True, 3_000_000.0, ranks=(1,))),
        Mutation("GPU clock behind the host's", shifted(on_gpu, -60_000.0), hidden),
        Mutation("GPU clock of one rank behind", shifted(on_gpu, -60_000.0, ranks=(2,)), hidden),
        Mutation("graphs lost", lost_graphs, hidden),
        Mutation("a kernel at zero", one_event({"ts": 0, "dur": 0})),
        Mutation("a kernel of eight days", one_event({"dur": 8 * 86400e6})),
        Mutation("a kernel before its launch", one_event({"ts": ORIGIN_US + 100})),
        Mutation("communication not recorded", without(is_nccl), hidden),
        Mutation("communication of one rank not recorded", without(is_nccl, ranks=(2,)), hidden),
        Mutation("launches not recorded", without(calls), hidden),
        Mutation("correlations lost", arguments(on_gpu, "correlation"), hidden),
        Mutation("synchronisation not recorded", without(lambda e: "Synchronize" in e["name"]), sync),
        Mutation("calls of an unknown platform", renamed(calls, "cat", "privateuse1_runtime")),
        Mutation("two steps left", steps_left(2), hidden),
        Mutation("one step left", steps_left(1), hidden),
        Mutation("another job's trace beside it", beside({"distributedInfo": {"rank": 0, "world_size": 2}})),
        Mutation("a trace of the day before", beside({"baseTimeNanoseconds": BASE_NS - 86_400_000_000_000})),
        Mutation("infinity in arguments", text('"grid": [8, 8, 1]', '"blocks per SM": inf')),
        Mutation("times as text", each_event(quoted)),
        Mutation("no world size", header(world_size=None)),
        Mutation("a world of more ranks", header(world_size=6), hidden),
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


# --- scores ------------------------------------------------------------------------------------------------


def analysed(work: Work, change: Change, folder: Path) -> Analysis | None:
    """Returns the analysis of a changed capture; None where it was refused."""
    change(capture(work), folder)
    try:
        return analyze_traces([folder])
    except ArtefactError:
        return None


def trials(only: str, keep: Path | None) -> Iterator[tuple[str, Mutation, Analysis | None]]:
    """Gives each capture's fault (or `balanced`), the change, and the analysis."""
    cases = FAULTS | {f"balanced {name}": work for name, work in BALANCED.items()}
    for fault, work in cases.items():
        for number, mutation in enumerate(mutations()):
            if only not in f"{fault} {mutation.name}":
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) if keep is None else keep / f"{fault} {number}".replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
                yield fault, mutation, analysed(work, mutation.write, folder)


def main() -> int:
    """Runs every trial, prints what came out, and returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="trials whose name holds this text")
    parser.add_argument("--keep", type=Path, help="write the captures here")
    options = parser.parse_args()
    counts = dict.fromkeys(
        ("faulty", "false healthy", "wrong", "visible", "named", "balanced", "blamed", "healthy"), 0
    )
    for fault, mutation, found in trials(options.only, options.keep):
        kind = "refused" if found is None else found.verdict.kind
        level = (
            "" if found is None else confidence(found, next(iter(found.findings), None), shared=False).level
        )
        bad = ""
        if fault.startswith("balanced"):
            counts["balanced"] += 1
            counts["healthy"] += kind == "healthy"
            if kind not in ("healthy", "refused", *SILENT):
                counts["blamed"] += 1
                bad = "BLAMED"
        else:
            counts["faulty"] += 1
            visible = fault in mutation.visible
            counts["visible"] += visible
            counts["named"] += visible and kind == fault
            counts["false healthy"] += kind == "healthy"
            wrong = kind not in (fault, "healthy", "refused", *SILENT) and level == "high"
            counts["wrong"] += wrong
            bad = (
                "FALSE"
                if kind == "healthy"
                else "WRONG"
                if wrong
                else "UNNAMED"
                if visible and kind != fault
                else ""
            )
        print(f"{fault:24} {mutation.name:40} {kind:22} {level:7} {bad}")
    print(json.dumps(counts))
    met = not counts["false healthy"] and not counts["wrong"] and not counts["blamed"]
    met &= (
        counts["named"] >= 0.8 * counts["visible"] and counts["healthy"] >= LEAST_HEALTHY * counts["balanced"]
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
