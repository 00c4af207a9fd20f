"""Compiled training with and without CUDA graphs, traced by torch.profiler.

    python benchmarks/graphs_gpu.py OUT

One process in a world of one rank trains the same model in DDP with `max-autotune-no-cudagraphs` and with
`max-autotune`. Each trace is analysed. It prints launches of graphs, compute, host and unseen time per step.
The exit status is 1 if compute (with unseen time) differs by more than 5 %, or graphs raise the host's share.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.commands._traces import analyze_traces

MODES = ("max-autotune-no-cudagraphs", "max-autotune")
WARM, STEPS = 12, 8


def traced(mode: str, folder: Path) -> Path:
    """Trains with a mode of torch.compile, and returns the trace of its last steps."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(12)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda())
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(4096, 1024, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compiled(batch).square().mean().backward()
        optimizer.step()

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    path = folder / mode / "rank0.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(STEPS + 3):
            step()
            profiler.step()
    return path


def measured(path: Path) -> dict[str, Any]:
    """Returns what the analysis of a trace says of its step."""
    found = analyze_traces([path])
    row = found.breakdown.per_rank[0]
    events = json.loads(path.read_text())["traceEvents"]
    return {
        "verdict": found.verdict.kind,
        "graph_launches": sum("GraphLaunch" in str(event.get("name")) for event in events),
        "step_ms": row.step_ms,
        "compute_ms": row.compute_ms,
        "unseen_ms": row.unseen_ms or 0.0,
        "host_pct": 100.0 * row.host_ms / row.step_ms,
    }


def main() -> int:
    """Traces both modes, prints what was measured, and returns the exit status."""
    folder = Path(sys.argv[1])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29541")
    dist.init_process_group("nccl", rank=0, world_size=1)
    plain, graphs = (measured(traced(mode, folder)) for mode in MODES)
    dist.destroy_process_group()
    print(json.dumps({MODES[0]: plain, MODES[1]: graphs}, indent=2))
    busy = graphs["compute_ms"] + graphs["unseen_ms"]
    equal = abs(busy / plain["compute_ms"] - 1.0) <= 0.05
    return 0 if equal and graphs["graph_launches"] and graphs["host_pct"] <= plain["host_pct"] + 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
