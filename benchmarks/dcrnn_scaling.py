"""How DCRNN scales over the GPUs of one host: strong and weak, with the parts of its step.

    python benchmarks/dcrnn_scaling.py --gpus 1 2 4 [--steps 40] [--repeats 1] [--json FILE]
    python benchmarks/dcrnn_scaling.py --small            # the script itself, on CPU ranks

Each run is `torchrun train.py` with `config/dcrnn.yaml` at the sizes of METR-LA; its numbers are read from
its step records by the code that makes the reports. Weak: each rank keeps its batch. Strong: as many samples
as the most ranks have together, shared by fewer. Efficiency is the rate of a rank over that at the fewest
ranks. Intervals are 95% over the steps of a run, or from the slowest to the fastest of several repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aorta.artefacts.layout import RunDir
from aorta.metrics.breakdown import breakdown_table
from aorta.metrics.steady import steady_steps
from aorta.metrics.throughput import throughput
from aorta.readers.steps import read_steps

ROOT = Path(__file__).resolve().parents[1]
BATCH = 64
"""Of a rank, in weak scaling and at the most ranks of strong scaling."""
SIZES = [
    "dcrnn.num_nodes=207",
    "dcrnn.hidden_dim=64",
    "dcrnn.num_steps=16128",  # so that no validation falls into the steps
    "training.cpu_threads=0",
    "distributed.bucket_cap_mb=1",
]
SMALL = ["training.device=cpu", "dcrnn.num_nodes=8", "dcrnn.hidden_dim=4", "dcrnn.num_steps=2016"]
PARTS = ("compute_ms", "exposed_comm_ms", "exposed_copy_ms", "data_wait_ms", "host_ms")


def train(ranks: int, batch: int, settings: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    overrides = [f"training.batch_size={batch}", f"training.output_dir={folder}", *settings]
    done = subprocess.run(
        [
            *command,
            str(ROOT / "train.py"),
            "--config",
            str(ROOT / "config/dcrnn.yaml"),
            "--override",
            *overrides,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{ranks} ranks failed:\n{(done.stdout + done.stderr)[-4000:]}")


def measured(folder: Path) -> dict[str, Any]:
    """Rate, its interval, and the mean parts of a step over ranks, of one run."""
    steady = steady_steps(read_steps(RunDir(folder)).by_rank)
    rate, table = throughput(steady), breakdown_table(steady.detailed())
    if rate is None or not table.per_rank:
        sys.exit(f"{folder}: no steady step with a breakdown; give more --steps")
    parts = {}
    for name in ("step_ms", *PARTS):
        values = [value for row in table.per_rank if (value := getattr(row, name)) is not None]
        parts[name] = statistics.fmean(values) if values else None
    found = rate.samples_per_s_interval
    interval = None if found is None else (found.low, found.high)
    return {"samples_per_s": rate.samples_per_s, "interval": interval, "steps": len(steady)} | parts


def pooled(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One row from repeats: medians, and the range of the rates; a single run keeps its own interval."""
    if len(runs) == 1:
        return runs[0]
    rates = [run["samples_per_s"] for run in runs]
    row: dict[str, Any] = {"interval": (min(rates), max(rates))}
    for name in ("samples_per_s", "steps", "step_ms", *PARTS):
        values = [run[name] for run in runs if run[name] is not None]
        row[name] = statistics.median(values) if values else None
    return row


def rows_of(
    gpus: list[int], batch: int, found: dict[tuple[int, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for scaling in ("weak", "strong"):
        first = None
        for ranks in gpus:
            share = batch if scaling == "weak" else batch * max(gpus) // ranks
            row = {"scaling": scaling, "ranks": ranks, "batch": share} | found[ranks, share]
            each = row["samples_per_s"] / ranks
            first = first or each
            rows.append(row | {"efficiency": each / first})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| scaling | ranks | batch a rank | samples/s (interval) | efficiency | step ms | compute"
        " | exposed communication | exposed copy | data wait | host |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        interval = row["interval"]
        spread = "" if interval is None else f" ({interval[0]:,.0f} to {interval[1]:,.0f})"
        parts = ["–" if row[name] is None else f"{row[name]:.1f}" for name in ("step_ms", *PARTS)]
        lines.append(
            f"| {row['scaling']} | {row['ranks']} | {row['batch']} | {row['samples_per_s']:,.0f}{spread}"
            f" | {row['efficiency']:.2f} | {' | '.join(parts)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="ranks; each has a GPU")
    parser.add_argument("--steps", type=int, default=40, help="of each run; the first ten are warm-up")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="a tiny model on CPU ranks")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    gpus, batch = sorted(set(given.gpus)), 8 if given.small else BATCH
    if any(max(gpus) % ranks for ranks in gpus):
        parser.error("--gpus must divide the largest of them")
    settings = [*(SMALL if given.small else SIZES), f"training.max_steps={given.steps}"]
    points = sorted({(ranks, share) for ranks in gpus for share in (batch, batch * max(gpus) // ranks)})
    runs: dict[tuple[int, int], list[dict[str, Any]]] = {point: [] for point in points}
    with tempfile.TemporaryDirectory() as name:
        for repeat in range(given.repeats):  # rounds, so that a drift of the machine meets every point
            for ranks, share in points:
                folder, start = Path(name, f"{ranks}_{share}_{repeat}"), time.perf_counter()
                train(ranks, share, settings, folder)
                runs[ranks, share].append(measured(folder))
                rate = runs[ranks, share][-1]["samples_per_s"]
                seconds = time.perf_counter() - start
                print(f"{ranks} ranks, batch {share}: {rate:,.0f} samples/s, {seconds:.0f} s", flush=True)
    rows = rows_of(gpus, batch, {point: pooled(one) for point, one in runs.items()})
    print(table(rows))
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
