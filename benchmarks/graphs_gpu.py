"""A compiled model with and without CUDA graphs: do graphs change what is said of compute?

    python benchmarks/graphs_gpu.py --output DIR [--steps 8]

One process, one GPU, DDP of one rank. `reduce-overhead` replays CUDA graphs, `default` launches each kernel.
It prints compute and host per step of both, and how many launches are graphs.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]
MODES = {"graphs": "reduce-overhead", "kernels": "default"}


def main() -> None:
    """Trace both, analyse both, print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29517", rank=0, world_size=1)
    found = {}
    for name, mode in MODES.items():
        folder = arguments.output / name
        folder.mkdir(parents=True)
        trace(mode, folder / "rank0.pt.trace.json", arguments.steps)
        found[name] = told(folder)
        print(name, json.dumps(found[name]), flush=True)
        torch.compiler.reset()
    ratio = found["graphs"]["compute_ms"] / found["kernels"]["compute_ms"]
    print(f"compute per step, graphs over kernels: {ratio:.3f}")
    dist.destroy_process_group()


def trace(mode: str, path: Path, steps: int) -> None:
    """One trace of `steps` steps of a small network."""
    torch.manual_seed(0)
    block = [torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512)]
    model = torch.nn.Sequential(*[part for _ in range(8) for part in copy.deepcopy(block)]).cuda()
    compiled = DistributedDataParallel(torch.compile(model, mode=mode), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    batch = torch.randn(8, 128, 512, device="cuda")

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(12):
        step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=steps)
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(steps + 3):
            step()
            profiler.step()


def told(folder: Path) -> dict[str, object]:
    """What the analysis says of a trace, and the calls that launch in it."""
    output = folder / "analysis.json"
    traced = folder / "rank0.pt.trace.json"
    command = [sys.executable, "-m", "aorta", "analyze", str(traced), "--json", str(output)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    made = json.loads(output.read_text())
    (row,) = made["breakdown"]["per_rank"]
    events = json.loads(traced.read_text())["traceEvents"]
    calls = Counter(event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver"))
    return {
        "verdict": made["verdict"]["kind"],
        "step_ms": row["step_ms"],
        "compute_ms": row["compute_ms"],
        "host_ms": row["host_ms"],
        "unseen_ms": row.get("unseen_ms"),
        "graph_launches": calls.get("cudaGraphLaunch", 0),
        "kernel_launches": sum(count for name, count in calls.items() if "LaunchKernel" in name),
        "without_profiler": (made.get("profiler_weight") or {}).get("step_ms_without"),
    }


if __name__ == "__main__":
    main()
