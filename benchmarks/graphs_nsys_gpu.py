"""Compiled DDP training under nsys, with and without CUDA graphs.

    python benchmarks/graphs_nsys_gpu.py OUT [--gpus N] [--override KEY=VALUE ...]

`aorta profile --profiler nsys` runs the trainer with `compile.enabled=true`: once with
`max-autotune-no-cudagraphs`, once with `max-autotune`. The reports of nsys are then analysed alone. It prints
launches of graphs, kernels inside graphs, and the parts of a step. Autotuning only chooses among ATen's
kernels, so that a run takes less than a minute. DDP needs at least two GPUs.

The exit status is 1 if compute with unseen time differs by more than 5 %, if graphs raise the host's share,
or if no launch of a graph was counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.commands._traces import analyze_traces

ROOT = Path(__file__).resolve().parents[1]
MODES = ("max-autotune-no-cudagraphs", "max-autotune")
OVERRIDES = (
    "compile.enabled=true",
    "distributed.strategy=ddp",
    "training.batch_size=256",
    "training.max_steps=60",
    "model.num_layers=2",
    "capture.warmup_steps=15",
    "capture.start_step=25",
    "capture.steps=20",
    "dataset.num_samples=80000",
)
EQUAL = 0.05


def recorded(mode: str, folder: Path, given: argparse.Namespace) -> list[Path]:
    """Trains with a mode of torch.compile under nsys, and returns the exports of all ranks."""
    environment = dict(os.environ)
    environment["TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"] = "ATEN"
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # nsys follows child processes
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "aorta", "profile", "--nodes", "1", "--profiler", "nsys"]
    command += ["--results", str(folder / "results"), "--docs", str(folder / "docs"), "--time", "00:04:00"]
    if given.gpus is not None:
        command += ["--gpus-per-node", str(given.gpus)]
    for override in (*OVERRIDES, f"compile.mode={mode}", *given.override):
        command += ["--override", override]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    print(f"{mode}: exit {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)
    found = sorted(folder.glob("results/*/run_*/nsys/*.sqlite"))
    if not found:
        print(done.stdout[-2000:], done.stderr[-1500:])
        for log in sorted(folder.rglob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
    return found


def counted(path: Path) -> dict[str, int]:
    """Returns how many graphs an export says were launched, and how many kernels ran inside of graphs."""
    with sqlite3.connect(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        calls = kernels = whole = 0
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
            (calls,) = database.execute(
                "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON StringIds.id = nameId "
                "WHERE value LIKE '%GraphLaunch%'"
            ).fetchone()
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            columns = {row[1] for row in database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
            if "graphNodeId" in columns:
                (kernels,) = database.execute(
                    "SELECT count(graphNodeId) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId > 0"
                ).fetchone()
        if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables:
            (whole,) = database.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE").fetchone()
    return {"graph_launches": calls, "kernels_in_graphs": kernels, "graphs_as_a_whole": whole}


def measured(exports: list[Path]) -> dict[str, Any]:
    """Returns what the analysis of a run's exports says of its step, and the counts of its graphs."""
    counts = [counted(path) for path in exports]
    found = analyze_traces(exports)
    rows = found.breakdown.per_rank
    if not rows:
        raise SystemExit(f"{counts}, and no step: {found.verdict.statement}")
    step = sum(row.step_ms for row in rows) / len(rows)
    return {
        "verdict": found.verdict.statement,
        "ranks": len(rows),
        "steps": found.breakdown.steps,
        **{key: sum(one[key] for one in counts) for key in counts[0]},
        "step_ms": step,
        "compute_ms": sum(row.compute_ms for row in rows) / len(rows),
        "unseen_ms": sum(row.unseen_ms or 0.0 for row in rows) / len(rows),
        "host_pct": 100.0 * sum(row.host_ms for row in rows) / len(rows) / step,
        "problems": [f"{one.file}: {one.reason}" for one in found.data_quality.problems],
    }


def main() -> int:
    """Records both modes, prints what was measured, and returns the exit status."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("output", type=Path)
    flags.add_argument("--gpus", type=int, help="of this machine; default: all of them")
    flags.add_argument("--override", nargs="*", default=[], metavar="KEY=VALUE")
    given = flags.parse_args()
    results = {}
    for mode in MODES:
        folder = given.output / mode
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        exports = recorded(mode, folder, given)
        if not exports:
            return 1
        results[mode] = measured(exports)
        print(json.dumps({mode: results[mode]}, indent=2), flush=True)
    plain, graphs = (results[mode] for mode in MODES)
    ratio = (graphs["compute_ms"] + graphs["unseen_ms"]) / (plain["compute_ms"] + plain["unseen_ms"])
    print(f"compute with graphs over compute without: {ratio:.3f}")
    equal = abs(ratio - 1.0) <= EQUAL
    return 0 if equal and graphs["graph_launches"] and graphs["host_pct"] <= plain["host_pct"] + 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
