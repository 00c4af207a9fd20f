"""Captures whose truth is known, changed in ways that have a known effect on the right answer.

    python benchmarks/trace_metamorphic.py FOLDER [--source kineto|nsys|all] [--only TEXT]

FOLDER holds captures of one folder each, with `rank<r>.pt.trace.json.gz` and `capture.sqlite.gz` (either may
be missing). The verdict of the capture as it is stands for the truth. A change that adds nothing must keep
it: ranks renumbered (its ranks follow), a clock set forward or back, all times doubled (its cost doubles),
compute kernels with names that nobody knows, a file packed or not. One that takes away must keep it or end in
`insufficient_data`: a rank left out (what is of all ranks is then of all that are left), or the last third or
half of the steps. Exit status 1 if any does not.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.errors import ArtefactError

JUMP_US = 3_000_000
FACTOR = 2
TOLERANCE = 0.02
_COMMUNICATION = ("nccl", "rccl", "Memcpy", "Memset")
_GPU_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "CUDA_EVENT")

Traces = dict[int, dict[str, Any]]
"""Kineto documents by rank."""


@dataclass(frozen=True, slots=True)
class Case:
    """A changed capture, and what its verdict has to be, against that of the unchanged one."""

    name: str
    write: Callable[[Path], None]
    ranks: Callable[[list[int]], list[int]] = list
    cost: float = 1.0
    may_abstain: bool = False


# --- Kineto ------------------------------------------------------------------------------------------------


def documents(folder: Path) -> Traces:
    """The traces of a capture."""
    found = {}
    for path in sorted(folder.glob("rank*.pt.trace.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        found[int(document["distributedInfo"]["rank"])] = document
    return found


def moved(
    document: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> dict[str, Any]:
    """The document with each of its events as `change` makes it; None: without it."""
    events = (change(event) for event in document["traceEvents"])
    return {**document, "traceEvents": [event for event in events if event is not None]}


def shifted(document: dict[str, Any], by_us: float) -> dict[str, Any]:
    """On a clock that is ahead."""
    return moved(document, lambda event: {**event, "ts": event["ts"] + by_us} if "ts" in event else event)


def stretched(document: dict[str, Any], zero: float) -> dict[str, Any]:
    """All times from `zero` on, times FACTOR."""

    def longer(event: dict[str, Any]) -> dict[str, Any]:
        made = {**event, "ts": zero + FACTOR * (event["ts"] - zero)} if "ts" in event else dict(event)
        return {**made, "dur": FACTOR * event["dur"]} if "dur" in event else made

    return moved(document, longer)


def renamed(document: dict[str, Any]) -> dict[str, Any]:
    """Kernels that compute, with names that say nothing."""

    def unknown(event: dict[str, Any]) -> dict[str, Any]:
        name = str(event.get("name", ""))
        if event.get("cat") != "kernel" or any(word in name for word in _COMMUNICATION):
            return event
        return {**event, "name": f"zq_{sum(map(ord, name)) % 97}"}

    return moved(document, unknown)


def shortened(document: dict[str, Any], share: float) -> dict[str, Any]:
    """With the first `share` of its steps."""
    steps = sorted(
        (
            event
            for event in document["traceEvents"]
            if str(event.get("name", "")).startswith("ProfilerStep#")
        ),
        key=lambda event: event["ts"],
    )
    host = [event for event in steps if event.get("cat") == "user_annotation"]
    end = host[round(share * len(host))]["ts"]
    return moved(
        document, lambda event: event if event.get("ph") == "M" or event.get("ts", 0) < end else None
    )


def renumbered(document: dict[str, Any], rank: int) -> dict[str, Any]:
    """As the trace of another rank."""
    return {
        **document,
        "distributedInfo": {**document["distributedInfo"], "rank": rank},
        "traceName": f"rank{rank}.pt.trace.json",
    }


def written(traces: Traces, *, packed: bool = True) -> Callable[[Path], None]:
    """What writes them into a folder."""

    def write(folder: Path) -> None:
        for rank, document in traces.items():
            data = json.dumps(document).encode()
            if packed:
                (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(data, 1))
            else:
                (folder / f"rank{rank}.pt.trace.json").write_bytes(data)

    return write


def kineto_cases(traces: Traces) -> Iterator[Case]:
    """Of a capture by torch.profiler."""
    ranks = sorted(traces)
    after = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    yield Case("not packed", written(traces, packed=False))
    yield Case(
        "ranks renumbered",
        written({after[rank]: renumbered(document, after[rank]) for rank, document in traces.items()}),
        ranks=lambda named: sorted(after[rank] for rank in named),
    )
    for rank in ranks:
        for way in (-1, 1):
            clock = written({**traces, rank: shifted(traces[rank], way * JUMP_US)})
            yield Case(f"clock of rank {rank} {way * JUMP_US / 1e6:+.0f} s", clock)
    zero = min(
        event["ts"] for document in traces.values() for event in document["traceEvents"] if "ts" in event
    )
    longer = {rank: stretched(document, zero) for rank, document in traces.items()}
    yield Case("all times doubled", written(longer), cost=FACTOR)
    yield Case("kernels renamed", written({rank: renamed(document) for rank, document in traces.items()}))
    for share in (1 / 2, 2 / 3):
        fewer = {rank: shortened(document, share) for rank, document in traces.items()}
        yield Case(f"the first {100 * share:.0f} % of the steps", written(fewer), may_abstain=True)
    for rank in ranks:
        rest = {other: document for other, document in traces.items() if other != rank}
        yield Case(f"without rank {rank}", written(rest), may_abstain=True)


# --- nsys --------------------------------------------------------------------------------------------------


def edited(
    packed: bytes, change: Callable[[sqlite3.Connection], None], *, pack: bool = True
) -> Callable[[Path], None]:
    """What writes an export after SQL has changed it."""

    def write(folder: Path) -> None:
        path = folder / "capture.sqlite"
        path.write_bytes(gzip.decompress(packed))
        with closing(sqlite3.connect(path)) as database:
            change(database)
            database.commit()
        if pack:
            (folder / "capture.sqlite.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()

    return write


def _timed(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for column in database.execute(f"PRAGMA table_info({table})"):
            if column[1] in ("start", "end") and table != "ANALYSIS_DETAILS":
                yield table, column[1]


def _stretch(database: sqlite3.Connection) -> None:
    for table, column in list(_timed(database)):
        database.execute(f'UPDATE {table} SET "{column}" = {FACTOR} * "{column}"')


def _halve(database: sqlite3.Connection) -> None:
    query = "SELECT start FROM NVTX_EVENTS WHERE text LIKE 'step %' ORDER BY start"
    starts = [row[0] for row in database.execute(query)]
    for table in {table for table, column in _timed(database) if column == "start"}:
        database.execute(f"DELETE FROM {table} WHERE start >= ?", (starts[len(starts) // 2],))


def _rename(database: sqlite3.Connection) -> None:
    used = "SELECT shortName FROM {0} UNION SELECT demangledName FROM {0} UNION SELECT mangledName FROM {0}"
    names = database.execute(
        f"SELECT id, value FROM StringIds WHERE id IN ({used.format('CUPTI_ACTIVITY_KIND_KERNEL')})"
    ).fetchall()
    for number, name in names:
        if not any(word in name for word in _COMMUNICATION):
            database.execute("UPDATE StringIds SET value = ? WHERE id = ?", (f"zq_{number % 97}", number))


def _drop(device: int) -> Callable[[sqlite3.Connection], None]:
    def change(database: sqlite3.Connection) -> None:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        query = f"SELECT DISTINCT globalPid FROM {table} WHERE deviceId = ?"
        (process,) = database.execute(query, (device,)).fetchone()
        for kind in _GPU_TABLES:
            column = "globalTid / 16777216 * 16777216" if kind == "RUNTIME" else "globalPid"
            database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{kind} WHERE {column} = ?", (process,))
        database.execute("DELETE FROM NVTX_EVENTS WHERE globalTid / 16777216 * 16777216 = ?", (process,))

    return change


def nsys_cases(packed: bytes) -> Iterator[Case]:
    """Of an export by nsys."""
    yield Case("not packed", edited(packed, lambda _: None, pack=False))
    yield Case("all times doubled", edited(packed, _stretch), cost=FACTOR)
    yield Case("kernels renamed", edited(packed, _rename))
    yield Case("half of the steps", edited(packed, _halve), may_abstain=True)
    for device in range(4):
        yield Case(f"without the rank on GPU {device}", edited(packed, _drop(device)), may_abstain=True)


# --- the score ---------------------------------------------------------------------------------------------


def cost_of(found: Analysis) -> float | None:
    """What the verdict's cause takes, ms per step."""
    return found.findings[0].lost_ms_per_step if found.findings else None


def fault(case: Case, before: Analysis, after: Analysis) -> str | None:
    """What is wrong with the verdict of a changed capture; None: nothing."""
    if after.verdict.kind == "insufficient_data" and case.may_abstain:
        return None
    expected = (before.verdict.kind, case.ranks(before.verdict.ranks))
    found = (after.verdict.kind, after.verdict.ranks)
    everybody = [row.rank for row in after.breakdown.per_rank]
    if case.may_abstain and found == (before.verdict.kind, everybody) and not before.verdict.ranks:
        return None
    if found != expected:
        return f"{found} instead of {expected}: {after.verdict.statement}"
    was, now = cost_of(before), cost_of(after)
    if case.may_abstain or was is None:
        return None
    if now is None or abs(now / (case.cost * was) - 1) > TOLERANCE:
        return f"costs {now} ms per step instead of {case.cost * was:.2f}"
    return None


def check(name: str, unchanged: Callable[[Path], None], cases: Iterator[Case], only: str) -> list[bool]:
    """Analyse a capture and its changes, a line for each."""
    before = analysed(unchanged)
    print(f"{name}: {before.verdict.statement}")
    right = []
    for case in cases:
        if only not in case.name:
            continue
        try:
            after = analysed(case.write)
        except ArtefactError as error:
            wrong: str | None = f"refused: {error}"
        else:
            wrong = fault(case, before, after)
            if wrong is None and after.verdict.kind != before.verdict.kind:
                print(f"  abstains    {case.name}: {after.verdict.statement}")
                right.append(True)
                continue
        print(f"  {'right' if wrong is None else 'WRONG':11} {case.name}" + (f": {wrong}" if wrong else ""))
        right.append(wrong is None)
    return right


def analysed(write: Callable[[Path], None]) -> Analysis:
    """What a capture is found to be."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return analyze_traces([Path(folder)])


def main() -> None:
    """Check every capture of a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", choices=["kineto", "nsys", "all"], default="all")
    parser.add_argument("--only", default="", help="changes whose name holds this text")
    arguments = parser.parse_args()
    right: list[bool] = []
    for capture in sorted(path for path in arguments.folder.iterdir() if path.is_dir()):
        if arguments.source != "nsys" and (traces := documents(capture)):
            right += check(f"{capture.name}, Kineto", written(traces), kineto_cases(traces), arguments.only)
        export = capture / "capture.sqlite.gz"
        if arguments.source != "kineto" and export.is_file():
            packed = export.read_bytes()
            right += check(
                f"{capture.name}, nsys", edited(packed, lambda _: None), nsys_cases(packed), arguments.only
            )
    print(f"{sum(right)} of {len(right)} as they must be")
    sys.exit(0 if right and all(right) else 1)


if __name__ == "__main__":
    main()
