"""The plain trainer: a loop as people write it, with one mistake or without."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from aorta.workloads.mistakes.data import ExtraInput, batches
from aorta.workloads.mistakes.model import Network
from aorta.workloads.mistakes.options import MistakeOptions

_WARM_UP = 5
_MICRO_BATCHES = 4
_LOGGED = 12
_SAVES = 6
"""Steps from one checkpoint of `ckpt_stall` to the next on a CPU; on a GPU it is every other step."""
_OFTEN = 3
"""Steps from one logging to the next of `rank0_logging`'s variant `often`."""
_SHARDED = ("fsdp_tiny_units", "fsdp_fp32")
_THREADS_PER_CORE = 4
_HEADROOM = 1.2
"""Device memory that `alloc_retries` may use, over what its longest batch takes from the driver."""
_SAME_LENGTH = 3
"""Steps of `alloc_retries` after which its batches get longer."""


class Trainer:
    """The program's state, and one step of it."""

    def __init__(self, options: MistakeOptions, rank: int, world: int, *, grouped: bool) -> None:
        self.options, self.rank, self.world = options, rank, world
        self.device = torch.device(options.device, rank) if options.device == "cuda" else torch.device("cpu")
        torch.manual_seed(options.seed)
        full = options.wrong("fp32_matmul")
        torch.backends.cuda.matmul.allow_tf32 = not full
        self.autocast = options.device == "cuda" and not full
        if options.mistake == "cpu_oversubscription":
            cores = len(os.sched_getaffinity(0))
            torch.set_num_threads(max(cores // world if options.fixed else _THREADS_PER_CORE * cores, 1))
        network: nn.Module = Network(options).to(self.device)
        if options.mistake == "recompile":
            # The usual limit would end the recompilation after some steps.
            torch._dynamo.config.recompile_limit = 10_000
            network = cast(nn.Module, torch.compile(network, backend="eager", dynamic=options.fixed))
        self.network = self._parallel(network) if grouped else network
        loops = options.wrong("foreach_off")
        fused = options.device == "cuda" and not loops
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=1e-4, foreach=False if loops else None, fused=fused or None
        )
        self.loss = nn.CrossEntropyLoss()
        self.data = batches(options, rank)
        self.extra = ExtraInput(options)
        self.count = 0
        self.longest = False
        """The step of `alloc_retries` has the longest batch."""
        self.garbage: list[Any] = []

    def _parallel(self, network: nn.Module) -> nn.Module:
        if self.options.mistake in _SHARDED:
            return self._sharded(network)
        small = self.options.wrong("small_buckets")
        return DistributedDataParallel(network, bucket_cap_mb=0.01 if small else 25)

    def _sharded(self, network: nn.Module) -> nn.Module:
        lower = None if self.options.wrong("fsdp_fp32") else torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=lower)
        tiny = (nn.Linear, nn.LayerNorm)
        blocks = list(cast(Network, network).blocks)
        # From the inside: what a unit holds already belongs to no other.
        modules = [*network.modules()][::-1]
        for unit in modules if self.options.wrong("fsdp_tiny_units") else blocks:
            if unit in blocks or isinstance(unit, tiny):
                fully_shard(unit, mp_policy=policy)
        fully_shard(network, mp_policy=policy)
        return network

    def step(self) -> None:
        """Load, forward, backward, optimizer, and what the program does besides."""
        options = self.options
        self.count += 1
        micro = _MICRO_BATCHES if options.mistake == "no_no_sync" else 1
        for number in range(micro):
            with self._synchronised(number == micro - 1):
                self._forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._besides()

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager[None]:
        if last or self.options.wrong("no_no_sync") or not hasattr(self.network, "no_sync"):
            return contextlib.nullcontext()
        quiet: contextlib.AbstractContextManager[None] = cast(Any, self.network).no_sync()
        return quiet

    def _forward_backward(self) -> None:
        options = self.options
        tokens = next(self.data).to(self.device, non_blocking=True)
        if options.mistake == "recompile":
            tokens = tokens[:, : options.length + 1 - self.count * 7 % (options.length // 2)]
        if options.mistake == "alloc_retries" and not self.longest:
            eighths = 5 + self.count // _SAME_LENGTH % 4
            tokens = tokens[:, : eighths * options.length // 8 + 1]
        if options.mistake == "cpu_oversubscription":
            self.statistics = torch.histc(torch.randn(1 << 20).sin(), bins=100)
        if options.wrong("seq_skew") and self.rank == 1:
            tokens = tokens.repeat(2, 1)
        if options.wrong("seq_imbalance") and self.count % self.world == self.rank:
            tokens = tokens.repeat(2, 1)
        large = self.extra.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.network(tokens[:, :-1])
            loss = self.loss(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        if large is not None:
            loss = loss + 0 * large.mean()
        if self.options.wrong("metric_reduces"):
            for _ in range(30):
                dist.all_reduce(loss.detach().clone())
        cast(Any, loss).backward()

    def _besides(self) -> None:
        options = self.options
        if options.wrong("empty_cache"):
            if options.device == "cuda":
                torch.cuda.empty_cache()
            gc.collect()
        if options.wrong("gc_pauses"):
            self.garbage = [[object()] for _ in range(100_000)]
            gc.collect()
        logs = options.mistake in ("rank0_logging", "rank0_evaluation") and self.rank == 0
        if logs and options.mistake == "rank0_logging" and not (options.fixed and self.count % 50):
            self._log()
        if logs and options.wrong("rank0_evaluation") and self.count % 2 == 0:
            with torch.no_grad():
                inner = getattr(self.network, "module", self.network)
                for _ in range(4):
                    inner(torch.zeros(options.batch, options.length, dtype=torch.long, device=self.device))
        saves = self.count % (2 if options.device == "cuda" else _SAVES) == 0
        if options.wrong("ckpt_stall") and saves:
            with tempfile.TemporaryFile() as file:
                torch.save([self.network.state_dict(), self.optimizer.state_dict()], file)

    def _log(self) -> None:
        """Look at the parameters, as the variant does it."""
        values = [value.detach() for value in list(self.network.parameters())[:_LOGGED]]
        variant = self.options.variant
        if variant == "often" and self.count % _OFTEN:
            return
        if variant == "items":
            self.seen = [[part.norm().item() for part in value.flatten().split(1 << 12)] for value in values]
        elif variant == "writer":
            with tempfile.TemporaryFile("w") as file:
                json.dump([value.flatten()[:20_000].tolist() for value in values], file)
        else:
            for value in values:
                torch.histc(value.float().cpu(), bins=100)

    def limit_memory(self) -> None:
        """Leave the allocator of `alloc_retries` hardly more than its longest batch needs."""
        if self.options.wrong("alloc_retries") and self.device.type == "cuda":
            self.longest = True
            torch.cuda.empty_cache()
            self.step()
            self.longest = False
            most = _HEADROOM * torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1]
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(min(most, 1.0))

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def run(
    options: MistakeOptions,
    rank: int = 0,
    world: int = 1,
    *,
    grouped: bool = False,
    measured: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Time plain steps, then trace some; returns and writes what the truth is.

    The process group must exist where `world` is above 1 or `grouped` says so. `measured` is called when all
    steps are done, and the trace is still to be written.
    """
    trainer = Trainer(options, rank, world, grouped=grouped or world > 1)
    anomaly = options.wrong("anomaly")
    with torch.autograd.set_detect_anomaly(anomaly, check_nan=True) if anomaly else contextlib.nullcontext():
        for _ in range(_WARM_UP if options.mistake != "alloc_retries" else 4 * _SAME_LENGTH):
            trainer.step()
        trainer.limit_memory()
        each = list(_timed(trainer, options.plain_steps))
        truth = {
            "case": options.mistake,
            "fixed": options.fixed,
            "world": world,
            "rank": rank,
            "step_ms": sum(each) / len(each),
            "median_ms": statistics.median(each),
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        }
        traced = _trace(trainer) if options.traced_steps else None
        # What the profiler leaves behind in the process shows, and a slow drift of the machine.
        again = list(_timed(trainer, options.plain_steps // 2))
        truth["after_ms"] = sum(again) / len(again)
    if measured is not None:
        measured()
    folder = options.traces or options.output
    folder.mkdir(parents=True, exist_ok=True)
    if traced is not None:
        traced.export_chrome_trace(str(folder / f"rank{rank}.pt.trace.json"))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"truth_rank{rank}.json").write_text(json.dumps(truth) + "\n", encoding="utf-8")
    return truth


def _timed(trainer: Trainer, steps: int) -> Iterator[float]:
    """Milliseconds of each step. Their sum is exact: the device is waited for at the end."""
    trainer.finish()
    last = time.perf_counter()
    for number in range(steps):
        trainer.step()
        if number == steps - 1:
            trainer.finish()
        now = time.perf_counter()
        yield (now - last) * 1e3
        last = now


def _trace(trainer: Trainer) -> torch.profiler.profile:
    options = trainer.options
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if options.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=kinds,
        schedule=torch.profiler.schedule(wait=1, warmup=2, active=options.traced_steps, repeat=1),
        with_stack=options.stacks,
        record_shapes=options.shapes,
    ) as profiler:
        for _ in range(3 + options.traced_steps):
            trainer.step()
            profiler.step()
    trainer.finish()
    return profiler
