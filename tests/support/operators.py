"""Kineto traces of a program that calls operators, each of which launches one kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def traced_program(path: Path, *, operators: int, gap_us: int, kernel_us: int, steps: int = 6) -> Path:
    """Write a trace in which each operator has one within it and a launch; `gap_us` lies between edges."""
    events: list[dict[str, Any]] = []
    now, free, correlation = 1_000_000, 0, 0
    for number in range(steps):
        begin = now
        for _ in range(operators):
            correlation += 1
            start = now + gap_us
            events += [
                _span("cpu_op", "aten::linear", start, 5 * gap_us),
                _span("cpu_op", "aten::addmm", start + gap_us, 3 * gap_us),
                _span(
                    "cuda_runtime", "cudaLaunchKernel", start + 2 * gap_us, gap_us, correlation=correlation
                ),
            ]
            launched = start + 2 * gap_us + 3
            free = max(free, launched) + kernel_us
            events.append(
                _span(
                    "kernel",
                    "gemm",
                    free - kernel_us,
                    kernel_us,
                    tid=7,
                    device=0,
                    stream=7,
                    correlation=correlation,
                )
            )
            now = start + 5 * gap_us
            # The launch queue is short here: the host is never more than a step ahead.
            now = max(now, free - operators * kernel_us)
        events.append(_span("user_annotation", f"ProfilerStep#{number}", begin, now - begin))
    info = {"rank": 0, "world_size": 1}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}), encoding="utf-8")
    return path


def _span(category: str, name: str, start: int, took: int, *, tid: int = 1, **args: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": took,
        "args": args,
    }
