"""What the recorder sees of NCCL's calls on one GPU, and what watching costs.

    python benchmarks/watched_calls_gpu.py

A group of one rank has calls and kernels of its own. Each kind of call has to be a range with an end, and
compute that waits for a call has to be cut. The ratio is that of steps of about 5 ms with eight calls each,
timed part by part, over the same steps without a recorder, in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.config.schema import CaptureConfig
from aorta.instrument import StepRecorder
from aorta.instrument.watching import Watching

STEPS, TURNS = 60, 8


def recorder_on(folder: str, device: torch.device) -> StepRecorder:
    """A recorder that times every step part by part, and calls of groups of one rank."""
    made = StepRecorder(folder, device, capture=CaptureConfig(warmup_steps=0, detail_interval=1))
    made._calls = watching = Watching(made._collectives, lambda: made._now.stream, alone=True)
    made._steps.add(watching.watch)
    return made


def each_kind(device: torch.device) -> dict[str, Callable[[], Any]]:
    """One call of each kind."""
    a, b = torch.ones(1 << 20, device=device), torch.empty(1 << 20, device=device)
    group = dist.group.WORLD
    assert group is not None

    def asynchronous() -> None:
        work = dist.all_reduce(a, async_op=True)
        a.mul_(1)
        assert work is not None
        work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(a),
        "all_reduce_async": asynchronous,
        "all_gather": lambda: dist.all_gather_into_tensor(b, a),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(b, a),
        "broadcast": lambda: dist.broadcast(a, src=0),
        "all_to_all": lambda: dist.all_to_all_single(b, a),
        "barrier": dist.barrier,
        "functional": lambda: functional.all_reduce(a, "sum", group).sum(),
    }


def seen(device: torch.device) -> None:
    """Print what the records hold of each kind of call, and of DDP with buffers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)).to(device)
    replicated = DistributedDataParallel(model, device_ids=[device.index])
    with tempfile.TemporaryDirectory() as folder:
        with recorder_on(folder, device) as recorder:
            for index, (name, call) in enumerate({**each_kind(device), "ddp": None}.items()):
                with recorder.step(epoch=0, step=index) as step:
                    with recorder.forward():
                        if call is None:
                            replicated(torch.ones(32, 256, device=device)).sum().backward()
                        else:
                            call()
                    step.result(samples=1, lr=0.1)
                print(index, name)
        lines = (Path(folder) / "rank_0_metrics.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        record = json.loads(line)
        ranges = Counter(one["stream"] for one in record["profile"]["ranges"])
        print(record["step"], dict(ranges), record["untimed_calls"], record["breakdown"])


def cost(device: torch.device) -> None:
    """Print the ratio of watched steps over plain ones."""
    size = 2500
    square, message = torch.ones(size, size, device=device), torch.ones(1 << 16, device=device)

    def step() -> None:
        for _ in range(8):
            torch.mm(square, square)
            dist.all_reduce(message)

    def timed(run: Callable[[int], None]) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for index in range(STEPS):
            run(index)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / STEPS * 1e3

    ratios, plain_ms = [], []
    for _ in range(TURNS):
        plain = timed(lambda _: step())
        with tempfile.TemporaryDirectory() as folder, recorder_on(folder, device) as recorder:

            def watched(index: int, recorder: StepRecorder = recorder) -> None:
                with recorder.step(epoch=0, step=index) as opened:
                    step()
                    opened.result(samples=1, lr=0.1)

            timed(watched)
            ratios.append(timed(watched) / plain)
        plain_ms.append(plain)
    print(
        f"plain step {statistics.median(plain_ms):.2f} ms, watched over plain {statistics.median(ratios):.4f}"
    )


def main() -> None:
    """On the first GPU."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    seen(device)
    cost(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
