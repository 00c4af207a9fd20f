"""What the GPU monitor sees of four loads: multiprocessors, tensor cores, memory, power, energy per sample.

    python benchmarks/energy_gpu.py --output DIR [--seconds 20]

One GPU. Loads: `idle`, `matmul` (bf16 products, bound by the tensor cores), `copy` (bound by the memory),
`tiny` (one kernel of one element after another, bound by the host). The monitor runs beside each load as in a
job. The energy counter of the driver, read before and after, says how far the mean of the power is off.
It needs torch, and what `aorta monitor` needs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("utilization_gpu", "sm_active_pct", "tensor_active_pct", "dram_active_pct", "power_draw_w")
SETTLE_S = 3.0
"""Power is a mean over a second, and the monitor needs a start."""


def loads() -> dict[str, Callable[[], int]]:
    """One call of each load; it returns the samples that it stands for."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big, other = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    one = torch.zeros(1, device="cuda")

    def matmul() -> int:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()
        return 20

    def copy() -> int:
        for _ in range(20):
            other.copy_(big)
        torch.cuda.synchronize()
        return 20

    def tiny() -> int:
        for _ in range(500):
            one.add_(1)
        torch.cuda.synchronize()
        return 500

    def idle() -> int:
        time.sleep(0.05)
        return 0

    return {"idle": idle, "matmul": matmul, "copy": copy, "tiny": tiny}


def energy_j() -> float | None:
    """The driver's counter; None where it has none."""
    try:
        import pynvml  # noqa: PLC0415  it may be absent

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)) / 1e3
    except Exception as error:
        print(f"no energy counter: {error}", file=sys.stderr)
        return None


def measure(name: str, load: Callable[[], int], folder: Path, seconds: float) -> dict[str, object]:
    """Run one load beside the monitor."""
    argv = [sys.executable, "-m", "aorta", "monitor", "--output-dir", str(folder), "--interval", "0.5"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen([*argv, "--no-cpu"], env={**os.environ, "PYTHONPATH": path}) as monitor:
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            load()
        wall, began, before, samples = time.time_ns(), time.monotonic(), energy_j(), 0
        while time.monotonic() < began + seconds:
            samples += load()
        took, after, wall_end = time.monotonic() - began, energy_j(), time.time_ns()
        monitor.terminate()
    with (folder / "gpu_monitor.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if wall <= int(row["wall_ns"]) <= wall_end]
    found: dict[str, object] = {
        "load": name,
        "rows": len(rows),
        "seconds": round(took, 2),
        "samples": samples,
    }
    for column in COLUMNS:
        values = [float(row[column]) for row in rows if row.get(column)]
        found[column] = round(statistics.fmean(values), 2) if values else None
    power = found["power_draw_w"]
    if samples and isinstance(power, float):
        found["energy_per_sample_j"] = power * took / samples
    if before is not None and after is not None:
        found["counter_w"] = round((after - before) / took, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    found = []
    for name, load in loads().items():
        found.append(measure(name, load, options.output / name, options.seconds))
        print(json.dumps(found[-1]), flush=True)
    (options.output / "results.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
