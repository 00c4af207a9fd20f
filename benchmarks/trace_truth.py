"""What the trace readers make of captures whose truth is known, and what HolisticTraceAnalysis makes of them.

    python benchmarks/trace_truth.py FOLDER [--hta PYTHON]

FOLDER holds the captures (dlrm8, tracelens, nsys-ai, hta, h100-*; those that are missing are said). PYTHON
is an interpreter with HolisticTraceAnalysis installed: its numbers must be ours on the events that it keeps,
with the times that it gives them (docs/traces.md). Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from aorta.artefacts.events import ABSENT, Kind, RangeRole, Trace, take
from aorta.intervals import as_intervals
from aorta.metrics.trace_breakdown import TraceBreakdown, break_down
from aorta.metrics.trace_steps import StepWindows
from aorta.metrics.trace_tops import top_kernels
from aorta.readers import kineto, nsys, rocprof_json

DLRM8 = {  # worker: idle %, compute %, overlap %
    0: (49.34, 7.95, 4.50),
    1: (34.28, 6.65, 2.47),
    2: (62.08, 9.41, 7.88),
    3: (43.20, 6.58, 3.31),
    4: (53.57, 6.79, 0.56),
    5: (55.64, 6.35, 0.64),
    6: (61.80, 9.21, 7.56),
    7: (75.75, 9.66, 9.51),
}
BALANCED_COLLECTIVES = (175, 170, 175, 168)
AGREEMENT = 0.03
"""Difference of overlap ratios between two runs of one case."""
INVERTED_PCT = 0.03
"""HTA's rounding turns kernels below 1 µs around and counts their length as negative: it finds more idle."""

HTA = """
import sys, json, logging, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
ranks = {int(k): v for k, v in json.loads(sys.argv[1]).items()}
a = TraceAnalysis(trace_files=ranks, trace_dir="", include_last_profiler_step=True)
b = a.get_temporal_breakdown(visualize=False); o = a.get_comm_comp_overlap(visualize=False)
rows = {}
for _, r in b.iterrows():
    rows[int(r["rank"])] = [float(r["idle_time_pctg"]), float(r["compute_time_pctg"])]
for _, r in o.iterrows():
    rows[int(r["rank"])].append(float(r["comp_comm_overlap_pctg"]))
print("RESULT" + json.dumps(rows))
"""


class Checks:
    """Counts what holds and prints each line."""

    def __init__(self) -> None:
        self.wrong = 0

    def add(self, what: str, found: object, expected: object) -> None:
        """One comparison."""
        good = found == expected
        self.wrong += not good
        print(f"{'ok   ' if good else 'WRONG'} {what}: {found}{'' if good else f', expected {expected}'}")


def whole(trace: Trace) -> TraceBreakdown:
    """The breakdown over everything that the GPU did."""
    window = as_intervals([(int(trace.gpu.start_ns.min()), int(trace.gpu.end_ns.max()))])
    made = break_down(trace, StepWindows(np.array([ABSENT]), window, "whole capture"))
    assert made is not None
    return made


def percentages(trace: Trace) -> tuple[float, float, float]:
    """Idle, compute and overlap in per cent, with two decimals, over the whole capture."""
    made = whole(trace)
    step = int(made.step_ns[0])
    idle = int(made.data_wait_ns[0] + made.host_ns[0])
    return (
        round(100 * idle / step, 2),
        round(100 * int(made.compute_ns[0]) / step, 2),
        round(100 * (made.overlap_ratio or 0.0), 2),
    )


def check_dlrm8(folder: Path, checks: Checks) -> None:
    for worker, expected in DLRM8.items():
        trace = kineto.read(folder / f"worker{worker}.pt.trace.json.gz")
        checks.add(f"dlrm8 worker{worker} idle, compute, overlap %", percentages(trace), expected)


def kineto_sums(path: Path) -> Counter[str]:
    """ns by kernel name, with Python's JSON and decimals: nothing of the reader's."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as stream:
        events = json.load(stream, parse_float=Decimal)["traceEvents"]
    sums: Counter[str] = Counter()
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "kernel":
            sums[event["name"]] += int(event["dur"] * 1000)
    return sums


def kernel_sums(trace: Trace) -> Counter[str]:
    """ns by kernel name, as the reader has them."""
    kinds = ("compute", "communication", "unclassified")
    return Counter({total.name: total.total_ns for total in top_kernels(trace) if total.kind in kinds})


def check_kineto(folder: Path, checks: Checks) -> None:
    for path in sorted(folder.glob("rank*.json.gz")):
        trace = kineto.read(path)
        checks.add(
            f"{folder.name} {path.name[:5]} ns by kernel name", kernel_sums(trace) == kineto_sums(path), True
        )
        checks.add(f"{folder.name} {path.name[:5]} problems", trace.problems, ())
        if folder.name == "h100-balanced":
            count = int((trace.gpu.kind == Kind.COMMUNICATION).sum())
            checks.add(
                f"{folder.name} {path.name[:5]} NCCL kernels", count, BALANCED_COLLECTIVES[trace.rank or 0]
            )


def nsys_sums(path: Path) -> Counter[str]:
    """ns by kernel name with the aggregation of `nsys stats -r cuda_gpu_kern_sum`."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "a.sqlite"
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        database = sqlite3.connect(plain)
        query = (
            "SELECT s.value, SUM(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN StringIds s ON s.id = k.demangledName GROUP BY 1"
        )
        return Counter(dict(database.execute(query).fetchall()))


def check_nsys(path: Path, checks: Checks) -> list[Trace]:
    traces = nsys.read(path)
    sums: Counter[str] = Counter()
    for trace in traces:
        sums += kernel_sums(trace)
    checks.add(f"{path.parent.name} nsys ns by kernel name, all ranks", sums == nsys_sums(path), True)
    return traces


def check_agreement(folder: Path, checks: Checks) -> None:
    """The same case captured twice, in two runs, by two profilers."""
    by_rank = {trace.rank: trace for trace in check_nsys(folder / "capture.sqlite.gz", checks)}
    for path in sorted(folder.glob("rank*.json.gz")):
        one = break_down(kineto.read(path))
        assert one is not None
        other = break_down(by_rank[one.rank])
        assert other is not None
        gap = abs((one.overlap_ratio or 0) - (other.overlap_ratio or 0))
        checks.add(
            f"{folder.name} rank {one.rank} overlap ratio, Kineto − nsys within {AGREEMENT}",
            gap < AGREEMENT,
            True,
        )
        for part in ("compute", "exposed_comm"):
            a, b = getattr(one, f"{part}_ns"), getattr(other, f"{part}_ns")
            meet = bool(a.min() <= b.max() and b.min() <= a.max())
            label = f"{folder.name} rank {one.rank} {part} a step meet: Kineto {_range(a)}, nsys {_range(b)}"
            checks.add(label, meet, True)


def _range(column: np.ndarray) -> str:
    return f"{column.min() / 1e6:.1f} to {column.max() / 1e6:.1f} ms"


def check_nsys_ai(path: Path, checks: Checks) -> None:
    first = next(trace for trace in check_nsys(path, checks) if trace.rank == 0)
    made = whole(first)
    checks.add("nsys-ai GPU 0 NCCL ms", round(int(made.comm_ns[0]) / 1e6, 1), 17.2)
    checks.add("nsys-ai GPU 0 overlap", made.overlap_ratio, 0.0)


def check_tracelens(path: Path, checks: Checks) -> None:
    (trace,) = rocprof_json.read(path)
    communication = trace.gpu.intervals(Kind.COMMUNICATION)
    checks.add("tracelens dispatches", len(trace.gpu), 43_915)
    checks.add("tracelens RCCL kernels", len(communication), 1_310)
    total = int((communication[:, 1] - communication[:, 0]).sum())
    checks.add("tracelens RCCL kernel ms", round(total / 1e6, 3), 4158.757)


def hta_files(folder: Path) -> Iterator[tuple[str, dict[int, Path]]]:
    """Sets of Kineto traces by rank."""
    yield "dlrm8", {rank: folder / f"public/dlrm8/worker{rank}.pt.trace.json.gz" for rank in DLRM8}
    yield "nccl_data", {0: folder / "public/hta/nccl_data.json.gz"}
    yield "sampled", {rank: folder / f"public/hta/sampled_rank-{rank}.json.gz" for rank in (0, 1)}
    for case in sorted(folder.glob("h100-*")):
        yield case.name, {rank: case / f"rank{rank}.pt.trace.json.gz" for rank in range(4)}


def as_hta(trace: Trace) -> Trace:
    """The events that HTA keeps, with the times that it gives them.

    It rounds starts up and ends down to whole µs and, where the trace has several steps, drops what no call
    before the last step's end launched.
    """
    gpu, host = trace.gpu, trace.host
    step = host.role == RangeRole.STEP
    if len(np.unique(host.name[step])) > 1:
        calls = np.isin(host.role, (RangeRole.LAUNCH, RangeRole.SYNC, RangeRole.API)) & (
            host.start_ns <= host.end_ns[step].max()
        )
        gpu = take(gpu, np.isin(gpu.correlation, host.correlation[calls]))
    rounded = replace(gpu, start_ns=-(-gpu.start_ns // 1000) * 1000, end_ns=gpu.end_ns // 1000 * 1000)
    return replace(trace, gpu=rounded)


def compare_hta(folder: Path, python: str, checks: Checks) -> None:
    """Idle, compute and overlap in per cent: ours, ours on HTA's events, HTA."""
    print(f"\n{'case':15} {'rank':>4}   {'ours':>22}   {'ours on its events':>22}   {'HTA':>22}")
    for name, files in hta_files(folder):
        if not all(path.exists() for path in files.values()):
            continue
        argument = json.dumps({rank: str(path) for rank, path in files.items()})
        done = subprocess.run([python, "-c", HTA, argument], capture_output=True, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
        if not found:
            checks.add(f"{name}: HTA's answer", done.stderr.strip()[-200:], "one")
            continue
        for rank, theirs in sorted(json.loads(found[0].removeprefix("RESULT")).items()):
            trace = kineto.read(files[int(rank)])
            ours, same = percentages(trace), percentages(as_hta(trace))
            columns = "   ".join(f"{a:7.2f}{b:7.2f}{c:8.2f}" for a, b, c in (ours, same, theirs))
            explained = same[1:] == tuple(theirs[1:]) and abs(same[0] - theirs[0]) <= INVERTED_PCT
            checks.wrong += not explained
            print(f"{name:15} {rank:>4}   {columns}   {'' if explained else 'WRONG: not explained'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    arguments = parser.parse_args()
    folder, checks = arguments.folder, Checks()
    parts = [
        (folder / "public/dlrm8", check_dlrm8),
        (folder / "public/tracelens/908_results.json.gz", check_tracelens),
        (folder / "public/nsys-ai/mfu_2gpu_before.sqlite.gz", check_nsys_ai),
        *((case, check_kineto) for case in sorted(folder.glob("h100-*"))),
        *((path.parent, check_agreement) for path in sorted(folder.glob("h100-*/capture.sqlite.gz"))),
    ]
    for path, check in parts:
        if path.exists():
            check(path, checks)
        else:
            print(f"missing: {path}")
    if arguments.hta:
        compare_hta(folder, arguments.hta, checks)
    print(f"\n{checks.wrong} checks failed")
    sys.exit(checks.wrong > 0)


if __name__ == "__main__":
    main()
