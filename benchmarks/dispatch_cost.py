"""What the recorder's place in torch's dispatcher costs in steps that nobody watches.

    python benchmarks/dispatch_cost.py [--turns 12] [--steps 60] [--calls 8] [--cpu]

The recorder registers once with the dispatcher and stays. In steps that are timed as a whole, each call of
`torch.distributed` then passes one function of Python. Blocks of steps with and without the registration
alternate in one process with a group of one rank. No other thread makes calls here, so that the registration
can be taken out again. `busy` steps keep the device busy for about 5 ms; in `host` steps launching the calls
is all there is. It prints step times, the ratio of each pair of blocks, and the cost of a call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

from aorta.instrument.dispatch import DISPATCH


class _Nobody:
    """Is asked about no call: it only has the registration made."""

    def noted(self, _: Any, begin: Callable[[], Any]) -> None:
        begin()


def registered(on: bool) -> None:
    """Has the recorder's operators registered without a watcher, or takes them out."""
    if on:
        DISPATCH.watch(_Nobody())
        DISPATCH.watch(None)
    elif DISPATCH._library is not None:
        DISPATCH._library._destroy()
        DISPATCH._library = None


def steps_of(device: torch.device, calls: int) -> dict[str, Callable[[], None]]:
    """The two kinds of step by name."""
    size = 2500 if device.type == "cuda" else 160
    square, message = torch.ones(size, size, device=device), torch.ones(1 << 10, device=device)

    def busy() -> None:
        for _ in range(calls):
            torch.mm(square, square)
            dist.all_reduce(message)

    def host() -> None:
        for _ in range(calls):
            dist.all_reduce(message)

    return {"busy": busy, "host": host}


def block_ms(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """The time of a step, over a block of steps."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - began) / steps * 1e3


def main() -> None:
    """Measures both kinds of step on the first GPU, or on the CPU."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--turns", type=int, default=12)
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--calls", type=int, default=8, help="per step")
    flags.add_argument("--cpu", action="store_true")
    given = flags.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29519")
    device = torch.device("cpu") if given.cpu else torch.device("cuda", 0)
    if not given.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if given.cpu else "nccl", rank=0, world_size=1)
    for name, step in steps_of(device, given.calls).items():
        block_ms(step, given.steps, device)
        without, ratios, each_us = [], [], []
        for turn in range(given.turns):
            found = {}
            for on in (False, True) if turn % 2 else (True, False):
                registered(on)
                block_ms(step, 5, device)
                found[on] = block_ms(step, given.steps, device)
            without.append(found[False])
            ratios.append(found[True] / found[False])
            each_us.append((found[True] - found[False]) * 1e3 / given.calls)
        registered(False)
        low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name}: {given.calls} calls, {statistics.median(without):.3f} ms without; ratio "
            f"{statistics.median(ratios):.4f} (middle half {low:.4f} to {high:.4f}); "
            f"{statistics.median(each_us):.2f} us per call",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
