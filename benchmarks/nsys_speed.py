"""Kernel sums and the breakdown of an Nsight Systems export, beside `nsys stats`.

    python benchmarks/nsys_speed.py EXPORT... --nsys PROGRAM [--copies 1 20] [--repeats 3]

EXPORT is an SQLite export, plain or gzip. `--copies N` repeats its kernels, copies, calls and ranges N
times with shifted times and correlations. `nsys stats` makes, in one call, the three reports that hold the
numbers of the breakdown (kernels, copies, NVTX ranges), each kernel's sum of which must be ours to the ns.
In another call it makes that of the driver calls too, which ours reads for the causes of idle time: then
both read the same rows. Each program is a fresh process; times are the least of `--repeats` alternating
runs. Exit status 1 if a sum differs.
"""

from __future__ import annotations

import argparse
import compileall
import csv
import gzip
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aorta.metrics.trace_tops import top_kernels  # noqa: E402
from aorta.readers import nsys  # noqa: E402

REPORTS = ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
CALLS = "cuda_api_sum"
KERNELS = ("compute", "communication", "unclassified")
TABLES = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")
OURS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from aorta.metrics.trace_breakdown import break_down
from aorta.metrics.trace_tops import top_kernels
from aorta.readers import nsys
for trace in nsys.read(Path(sys.argv[2])):
    break_down(trace), top_kernels(trace)
"""


def repeated(database: Path, copies: int) -> None:
    """Repeat the activity of an export, each copy behind the one before."""
    connection = sqlite3.connect(database)
    have = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    tables = [f"CUPTI_ACTIVITY_KIND_{name}" for name in TABLES if f"CUPTI_ACTIVITY_KIND_{name}" in have]
    tables += ["NVTX_EVENTS"] if "NVTX_EVENTS" in have else []
    ends = [connection.execute(f"SELECT MIN(start), MAX(end) FROM {table}").fetchone() for table in tables]
    period = max(end for _, end in ends if end) - min(start for start, _ in ends if start) + 10**6
    for table in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        # Each copy's rows come from a table of the first's, so that copies are not copied.
        connection.execute(f"CREATE TEMP TABLE base AS SELECT * FROM {table}")
        for copy in range(1, copies):
            terms = ", ".join(_moved(name, copy, period) for name in columns)
            connection.execute(f"INSERT INTO {table} SELECT {terms} FROM base")
        connection.execute("DROP TABLE base")
    connection.commit()
    connection.close()


def _moved(column: str, copy: int, period: int) -> str:
    if column in ("start", "end"):
        return f'"{column}" + {copy * period}'
    return f'"{column}" + {copy << 24}' if column == "correlationId" else f'"{column}"'


def timed(argv: Sequence[str]) -> tuple[float, float, str]:
    """Wall-clock and CPU seconds of a program, and what it printed."""
    before, at = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - at, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{argv[0]}: {done.stderr.strip()[-300:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def stats_sums(text: str) -> Counter[str]:
    """ns by kernel name in the CSV of `cuda_gpu_kern_sum`."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("Time (%)")), None)
    if first is None:
        return Counter()
    rows = csv.DictReader(line for line in lines[first:] if line.strip())
    return Counter({row["Name"]: int(row["Total Time (ns)"]) for row in rows})


def our_sums(database: Path) -> Counter[str]:
    """ns by kernel name of all ranks, as the reader has them."""
    sums: Counter[str] = Counter()
    for trace in nsys.read(database):
        for total in top_kernels(trace):
            sums[total.name] += total.total_ns if total.kind in KERNELS else 0
    return +sums


def _beside(theirs: Sequence[float], ours: Sequence[float]) -> str:
    wall, cpu = (one / other for one, other in zip(theirs, ours, strict=True))
    return f"{theirs[0]:6.2f} s ({theirs[1]:5.2f} CPU): {wall:4.1f} times ours ({cpu:.1f})"


def compare(export: Path, copies: int, program: str, folder: Path, repeats: int) -> bool:
    """Print one line; whether the sums are equal."""
    database = folder / f"{export.parent.name}-{copies}.sqlite"
    if export.suffix == ".gz":
        with gzip.open(export) as packed, database.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    else:
        shutil.copyfile(export, database)
    if copies > 1:
        repeated(database, copies)
    size = database.stat().st_size / 1e6
    three, four = (
        [program, "stats", *(f"--report={report}" for report in reports), "--format=csv", str(database)]
        for reports in (REPORTS, (*REPORTS, CALLS))
    )
    programs = ([sys.executable, "-c", OURS, str(ROOT), str(database)], three, four)
    runs = [[timed(argv) for argv in programs] for _ in range(repeats)]
    ours, same_numbers, same_rows = (
        [min(run[i][clock] for run in runs) for clock in (0, 1)] for i in range(3)
    )
    kernels = timed([program, "stats", "-r", REPORTS[0], "--format", "csv", "-q", str(database)])[2]
    sums = our_sums(database)
    equal = sums == stats_sums(kernels)
    print(
        f"{export.parent.name:16} {size:7.1f} MB   ours {ours[0]:6.2f} s ({ours[1]:5.2f} CPU)   nsys stats "
        f"{_beside(same_numbers, ours)}   with calls {_beside(same_rows, ours)}   {len(sums)} kernel sums "
        f"{'equal' if equal else 'DIFFER'}",
        flush=True,
    )
    database.unlink()
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path, nargs="+")
    parser.add_argument("--nsys", default="nsys", metavar="PROGRAM")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    # As an installation does: PYTHONDONTWRITEBYTECODE would have every process compile what it imports.
    compileall.compile_dir(ROOT / "aorta", quiet=1)
    with tempfile.TemporaryDirectory(prefix="aorta-nsys-") as folder:
        cases = [(export, copies) for export in arguments.export for copies in arguments.copies]
        equal = [
            compare(export, copies, arguments.nsys, Path(folder), arguments.repeats)
            for export, copies in cases
        ]
    sys.exit(not all(equal))


if __name__ == "__main__":
    main()
