"""Time and memory of `aorta aggregate` by ranks, on generated runs of the true schema.

    python benchmarks/scale.py [--ranks 8 64 512 2048 8192] [--steps 200] [--folder DIR] [--json FILE]

Each run is written by `scale_generate.py` (not counted), then aggregated by a process of its own on two
cores. `peak` is the resident memory of that process and its children together, sampled every 0.1 s; pages
that they share count once for each. `again` is a second aggregation, which finds its own files. A first one
of 8 ranks warms the machine's caches of programs and is not counted. The exponent is that of
`seconds = a + b * ranks ** exponent`, with the seconds of the smallest run taken for `a`; 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scale_generate import write

CORES = 2
LIMIT_S, LIMIT_MIB = 60.0, 2048.0
RANKS_PER_NODE = 8


def aggregate(results: Path, docs: Path) -> tuple[float, float]:
    """Seconds, and peak MiB of the process and its children.

    Raises:
        SystemExit: it failed.
    """
    started, peak = time.perf_counter(), 0
    log = docs.with_suffix(".log")
    with log.open("w") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "aorta", "aggregate", str(results), "--docs", str(docs)],
            stdout=stream, stderr=stream,
        )  # fmt: skip
        process = psutil.Process(child.pid)
        while child.poll() is None:
            peak = max(peak, _resident(process))
            time.sleep(0.1)
    if child.returncode:
        raise SystemExit(log.read_text())
    return time.perf_counter() - started, peak / 2**20


def _resident(process: psutil.Process) -> int:
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def measure(ranks: int, steps: int, folder: Path) -> dict[str, Any]:
    """One row of the table; the run is written unless it is there."""
    per_node = min(ranks, RANKS_PER_NODE)
    results, docs = folder / f"results_{ranks}", folder / f"docs_{ranks}"
    if not results.exists():
        write(results, ranks // per_node, per_node, steps)
        os.sync()  # what it still has to write is not the aggregation's
    run = next(results.glob("*/run_*"))
    inputs = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    seconds, peak = aggregate(results, docs)
    again, second_peak = aggregate(results, docs)
    made = {"report": run / "profiling_report.txt", "analysis": run / "profiling_analysis.json",
            "document": docs / "BOTTLENECK_ANALYSIS.md"}  # fmt: skip
    verdict = json.loads(made["analysis"].read_bytes())["verdict"]
    return {
        "ranks": ranks,
        "input_mib": inputs / 2**20,
        "seconds": seconds,
        "again_s": again,
        "peak_mib": max(peak, second_peak),
        "verdict": verdict["kind"],
        "named": verdict["ranks"],
        **{f"{name}_kib": path.stat().st_size / 1024 for name, path in made.items()},
        "document_lines": len(made["document"].read_text().splitlines()),
    }


def exponent(rows: list[dict[str, Any]]) -> float:
    """By least squares on the logarithms of ranks, and of seconds beyond those of the smallest run."""
    base = rows[0]["seconds"]
    points = [
        (math.log(row["ranks"]), math.log(row["seconds"] - base)) for row in rows[1:] if row["seconds"] > base
    ]
    if len(points) < 2:
        return math.nan
    x, y = (sum(point[side] for point in points) / len(points) for side in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def run_sizes(
    given: argparse.Namespace,
    sizes: list[int],
    measured: Callable[[int, Path], dict[str, Any]],
    head: str,
    line: Callable[[dict[str, Any]], str],
) -> None:
    """Measure the sizes on two cores, the smallest first; print a line each, and whether the largest is
    within the limits.

    Args:
        given: the arguments `folder`, `steps` and `json`.
        sizes: of the runs.
        measured: the row of a size, its run below the folder.
        head: of the table.
        line: of a row.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    rows = []
    print(head)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for size in sorted(sizes):
            row = measured(size, folder)
            rows.append(row)
            print(line(row), flush=True)
            if given.folder is None:
                shutil.rmtree(folder / f"results_{row['ranks']}")
    worst = rows[-1]
    met = worst["seconds"] < LIMIT_S and worst["peak_mib"] < LIMIT_MIB
    print(f"exponent {exponent(rows):.2f} over {[row['ranks'] for row in rows]}")
    print(f"{LIMIT_S:g} s and {LIMIT_MIB:g} MiB at {worst['ranks']} ranks: {'met' if met else 'NOT MET'}")
    if given.json:
        given.json.write_text(
            json.dumps({"steps": given.steps, "exponent": exponent(rows), "rows": rows}, indent=1)
        )


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Those of `run_sizes`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="keep the runs here, and use those that are there")
    parser.add_argument("--json", type=Path)
    return parser


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['ranks']:6d} {row['input_mib']:10.0f} {row['seconds']:8.1f} {row['again_s']:8.1f}"
        f" {row['peak_mib']:9.0f} {row['document_lines']:6d} {row['document_kib']:4.0f}"
        f" {row['report_kib']:11.0f} {row['analysis_kib']:13.0f}  {row['verdict']} {row['named']}"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 2048, 8192])
    given = parser.parse_args()
    smallest = min(given.ranks)

    def measured(ranks: int, folder: Path) -> dict[str, Any]:
        if ranks == smallest:
            measure(min(ranks, RANKS_PER_NODE), given.steps, folder)
        return measure(ranks, given.steps, folder)

    head = " ranks  input MiB  seconds  again s  peak MiB  lines  KiB  report KiB  analysis KiB  verdict"
    run_sizes(given, given.ranks, measured, head, _line)


if __name__ == "__main__":
    main()
