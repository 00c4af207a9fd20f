"""The programs. None of them knows of aorta: what they are given counts their steps, and says when to end."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available
SLOW_S = 0.03
"""What a fault takes per step, on rank 1."""


class Watch(Protocol):
    """What a loop is given."""

    done: bool

    def step(self) -> None:
        """A step is over."""


def rank() -> int:
    return int(os.environ["RANK"])


def device() -> torch.device:
    return torch.device("cuda", rank()) if CUDA() else torch.device("cpu")


def started() -> None:
    if CUDA():
        torch.cuda.set_device(rank())
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl" if CUDA() else "gloo")


def digest(values: list[Any]) -> str:
    whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values]
    tensors = [value.detach().double().cpu() for value in whole]
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in tensors)).hexdigest()[:16]


def wrapped(model: Any) -> Any:
    return DistributedDataParallel(model, device_ids=[rank()] if CUDA() else None)


class Layer(nn.Module):
    """A block of a transformer without its attention, whose gradients differ from run to run."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        """Add what is inside."""
        return x + self.inside(x)


def layers(width: int, count: int) -> Any:
    return nn.Sequential(*[Layer(width) for _ in range(count)]).to(device())


def loop(model: Any, batch: int, width: int, steps: int, watch: Watch, *, digested: bool = True) -> str:
    """Train for so many steps, or until `watch` is done."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, made = [], [torch.randn(batch, width) for _ in range(4)]
    made = [one.pin_memory() for one in made] if CUDA() else made
    for step in range(steps):
        x = made[step % 4].to(device(), non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        watch.step()
        if watch.done:
            break
    return digest([torch.stack(losses), *model.parameters()]) if digested else ""


def ddp(steps: int, watch: Watch) -> str:
    """About 20 ms per step, bound by the GPU; without one about 10 ms."""
    started()
    width, count, batch = (2048, 6, 320) if CUDA() else (256, 2, 64)
    return loop(wrapped(layers(width, count)), batch, width, steps, watch)


def small(steps: int, watch: Watch) -> str:
    """Few large kernels: about 5 ms per step."""
    started()
    width, count, batch = (4096, 2, 64) if CUDA() else (64, 2, 16)
    return loop(wrapped(layers(width, count)), batch, width, steps, watch)


def host(steps: int, watch: Watch) -> str:
    """Many small kernels: bound by the host."""
    started()
    return loop(wrapped(layers(64, 6)), 64, 64, steps, watch)


def sharded(model: Any) -> Any:
    """Return the model with `fully_shard` on each block and on itself."""
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def fsdp(steps: int, watch: Watch) -> str:
    """`fully_shard` on each block."""
    started()
    width, count, batch = (2048, 6, 320) if CUDA() else (64, 2, 16)
    return loop(sharded(layers(width, count)), batch, width, steps, watch)


def fsdp_large(steps: int, watch: Watch) -> str:
    """`fully_shard` on blocks that keep the GPU busy."""
    started()
    width, count, batch = (4096, 2, 1024) if CUDA() else (64, 2, 16)
    return loop(sharded(layers(width, count)), batch, width, steps, watch, digested=False)


def compiled(steps: int, watch: Watch) -> str:
    """A compiled model."""
    started()
    width, batch = (1024, 512) if CUDA() else (64, 16)
    return loop(torch.compile(wrapped(layers(width, 4))), batch, width, steps, watch)


def hf_large(steps: int, watch: Watch) -> str:
    """The Trainer of transformers with batches that keep the GPU busy."""
    return hf(steps, watch, batch=96)


def hf(steps: int, watch: Watch, batch: int = 16) -> str:
    """The Trainer of transformers."""
    from transformers import (  # noqa: PLC0415
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Tokens(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> dict[str, Any]:
            row = (torch.arange(256) * 7 + index) % 1000
            return {"input_ids": row, "labels": row}

    losses = []

    class Told(TrainerCallback):
        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            watch.step()
            control.should_training_stop |= watch.done  # a callback may not take back the limit of steps

        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            losses.append(str(logs.get("loss")))

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    layers_, width, batch = (8, 768, batch) if CUDA() else (2, 64, 2)
    config = GPT2Config(
        n_layer=layers_, n_embd=width, n_head=4, vocab_size=1000, n_positions=256,
        attn_implementation="eager", attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=batch, report_to=[], logging_steps=20,
            save_strategy="no", disable_tqdm=True, bf16=CUDA(), dataloader_num_workers=2, learning_rate=1e-4,
            use_cpu=not CUDA(),
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
        Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Told()]).train()
    return f"{digest(list(model.parameters()))} {' '.join(losses)}"


def graph(_: int, __: Watch) -> str:
    """A CUDA graph that holds the whole step, on each rank for itself."""
    started()
    model = nn.Sequential(*[nn.Linear(512, 512, device="cuda") for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    static = torch.randn(64, 512, device="cuda")

    def one() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(static).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            one()
    torch.cuda.current_stream().wait_stream(side)
    made = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(made):
        loss = one()
    losses = []
    for step in range(50):
        static.copy_(torch.full((64, 512), 0.1 * (step % 5)))
        made.replay()
        losses.append(loss.clone())
    return digest([torch.stack(losses), *model.parameters()])


def preprocess() -> None:
    """Host work on rank 1."""
    if os.environ.get("FAULT") == "host" and rank() == 1:
        time.sleep(SLOW_S)


class Padded(nn.Module):
    """A model, and products that take the time of a larger one."""

    def __init__(self, products: int) -> None:
        super().__init__()
        size = 4096 if CUDA() else 64
        self.products, self.model = products, layers(1024, 4)
        self.square = torch.full((size, size), 1 / size, device=device())

    def forward(self, x: Any) -> Any:
        """Compute the products, and then the model."""
        for _ in range(self.products):
            torch.mm(self.square, self.square)
        return self.model(x)


def faulty(steps: int, watch: Watch) -> str:
    """A DataLoader and DDP, with the fault that FAULT names on rank 1."""
    fault = os.environ.get("FAULT") if rank() == 1 else None

    class Rows(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8 * steps

        def __getitem__(self, index: int) -> Any:
            if fault == "loader":
                time.sleep(SLOW_S / 8)
            return torch.full((1024,), float(index % 7))

    started()
    model = wrapped(Padded(8 if fault == "compute" else 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Rows(), batch_size=8, pin_memory=CUDA()):
        preprocess()
        rows = batch.to(device(), non_blocking=True).repeat(128 if CUDA() else 1, 1)
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step()
    return digest(list(model.parameters()))


def calls(_: int, __: Watch) -> str:
    """CPU time of a small all-reduce, in µs: what a call of `torch.distributed` costs the training thread."""
    started()
    model = wrapped(layers(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(20):  # warm-up is over then, and steps are timed as a whole
        model(torch.ones(2, 64, device=device())).sum().backward()
        optimizer.step()
    small_one, found = torch.ones(8, device=device()), []
    for _ in range(20):
        began = time.thread_time_ns()
        for _ in range(100):
            dist.all_reduce(small_one)
        found.append((time.thread_time_ns() - began) / 1e5)
        if CUDA():
            torch.cuda.synchronize()
    return f"{sorted(found)[len(found) // 2]:.2f}"


def prices(_: int, __: Watch) -> str:
    """CPU time of single calls of the hooks and the recorder, in µs: a loop over each one alone."""
    from aorta.instrument.streams import current_stream, runtime_elapsed  # noqa: PLC0415

    at = device()
    one, loss = torch.ones(4, 4, device=at), torch.ones((), device=at, requires_grad=True) * 2
    found = {"call of Python": _price(lambda: None), "detach": _price(loss.detach)}
    found["compiling"] = _price(torch.compiler.is_compiling)
    found["monotonic"] = _price(time.monotonic_ns)
    found["thread time"] = _price(time.thread_time_ns)
    if CUDA():
        stream, events = current_stream(at), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        elapsed = runtime_elapsed()
        for event in events:
            event.record(stream)
        torch.cuda.synchronize()
        found["record"] = _price(lambda: events[0].record(stream))
        torch.cuda.synchronize()
        events[1].record(stream)
        torch.cuda.synchronize()
        found["query"] = _price(events[0].query)
        found["elapsed, torch"] = _price(lambda: events[0].elapsed_time(events[1]))
        if elapsed is not None:
            found["elapsed, runtime"] = _price(lambda: elapsed(*events))
        found["event made"] = _price(lambda: torch.cuda.Event(enable_timing=True))
        found["capturing"] = _price(torch._C._cuda_isCurrentStreamCapturing)
        found["stream"] = _price(lambda: current_stream(at))
        found["allocator read"] = _price(lambda: torch.cuda.memory_stats_as_nested_dict(at))
        found["address"] = _price(one.data_ptr)
        found["kernel launched"] = _price(lambda: one.add_(1))
    return ", ".join(f"{name} {value:.2f}" for name, value in found.items())


def _price(call: Callable[[], Any], calls: int = 300, turns: int = 9) -> float:
    found = []
    for _ in range(turns):
        began = time.thread_time_ns()
        for _ in range(calls):
            call()
        found.append((time.thread_time_ns() - began) / 1000 / calls)
        if CUDA():
            torch.cuda.synchronize()
    return sorted(found)[turns // 2]


PROGRAMS: dict[str, Callable[[int, Watch], str]] = {
    one.__name__: one
    for one in (ddp, small, host, fsdp, fsdp_large, compiled, hf, hf_large, graph, faulty, calls, prices)
}
