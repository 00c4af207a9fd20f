"""What the hooks of `aorta.inject` cost and see on one GPU, and whether results stay the same.

    python benchmarks/own_program_gpu.py --output DIR [--seconds 230]

Programs that know nothing of aorta: `ddp` (DDP on NCCL, bound by the GPU), `host` (small steps, bound by the
host), `fsdp` (`fully_shard`), `hf` (the Trainer of transformers), `compiled` (torch.compile), `graph` (a CUDA
graph), `loader` (a slow loader). Each runs with and without hooks, in a process of its own that is forked
from one which has imported torch: losses and weights must be equal. For the cost, one process takes the hooks
out and puts them back between blocks of 30 steps, so that neighbours are compared. `sampled` compares event
windows with the kernels of the same steps. It needs torch alone (`hf`: transformers).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset, dataloader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from aorta.inject import stacks, start

LEARNED, WARMUP, BLOCK = 2, 10, 30
"""Updates before the first record, steps of warm-up, and steps per block."""
DETAILED_SHARE = 1 / 40
PATIENCE_S = 75
EQUAL_STEPS = 40
PAIRED = LEARNED + WARMUP


class Switch:
    """Takes the hooks out of this process and puts them back."""

    PLACES: tuple[tuple[Any, str], ...] = (
        (torch.autograd, "backward"),
        (torch, "save"),
        (nn.utils, "clip_grad_norm_"),
        (dataloader._BaseDataLoaderIter, "__next__"),
        (DataLoader, "__iter__"),
        (torch.amp.GradScaler, "step"),
        (torch.amp.GradScaler, "scale"),
        (torch.cuda.CUDAGraph, "capture_end"),
        (torch.cuda.CUDAGraph, "replay"),
        (torch.Tensor, "to"),
        (torch.Tensor, "cuda"),
    )
    AROUND = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)

    def __init__(self) -> None:
        self.plain = [getattr(owner, name) for owner, name in self.PLACES]
        self.driver: Any = None
        self._hooked: list[Any] = []
        self._around: list[dict[int, Any]] = []
        self._calls: list[tuple[type, Any]] = []

    def out(self) -> None:
        """Leave torch as it was."""
        self._hooked = [getattr(owner, name) for owner, name in self.PLACES]
        for (owner, name), plain in zip(self.PLACES, self.plain, strict=True):
            setattr(owner, name, plain)
        self._around = [dict(hooks) for hooks in self.AROUND]
        for hooks in self.AROUND:
            hooks.clear()
        self._calls = [(one, one.__call__) for one in self.driver.roots._classes]
        for one, _ in self._calls:
            del one.__call__
        if self.driver._sampler is not None:
            self.driver._sampler.stop()

    def back(self) -> None:
        """Put the hooks back."""
        for (owner, name), hooked in zip(self.PLACES, self._hooked, strict=True):
            setattr(owner, name, hooked)
        for hooks, kept in zip(self.AROUND, self._around, strict=True):
            hooks.update(kept)
        for one, call in self._calls:
            one.__call__ = call  # type: ignore[method-assign]
        self.driver._sampler = stacks.Sampler(self.driver._stacks, self.driver._report)

    @property
    def detailed(self) -> bool:
        """Whether the recorder times steps part by part now."""
        return bool(self.driver.recorder._steps.kind[1])


SWITCH = Switch()
PAIRS = False
"""Whether the hooks are taken out and put back between blocks."""


# --- the programs: none of them knows of aorta ---------------------------------------------------------


class Blocks:
    """Times blocks of steps, each from one synchronisation to the next: which kind, and ms per step."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []
        self._steps, self._since, self._kind = 0, 0.0, ""

    def step(self) -> None:
        """One step is over."""
        self._steps += 1
        at = self._steps - LEARNED - WARMUP
        if not PAIRS or at < 0 or at % BLOCK:
            return
        torch.cuda.synchronize()
        if at:
            self.times.append((self._kind, 1000 * (time.perf_counter() - self._since) / BLOCK))
        if (at // BLOCK) % 2:
            SWITCH.back()
            self._kind = "detailed" if SWITCH.detailed else "whole"
        else:
            SWITCH.out()
            self._kind = "plain"
        torch.cuda.synchronize()
        self._since = time.perf_counter()


def digest(values: list[Any]) -> str:
    tensors = [value.detach().double().cpu() for value in values]
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in tensors)).hexdigest()[:16]


def started() -> None:
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl")


def loop(model: Any, batches: Callable[[int], Any], steps: int, width: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    blocks, losses = Blocks(), []
    head = torch.nn.Linear(width, 1, device="cuda")
    for step in range(steps):
        x = batches(step).to("cuda", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = head(model(x)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        blocks.step()
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return {"blocks": blocks.times, "digest": digest([torch.stack(losses), *weights])}


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
    return nn.Sequential(*[Layer(width) for _ in range(count)]).cuda()


def pinned(batch: int, width: int) -> Callable[[int], Any]:
    made = [torch.randn(batch, width).pin_memory() for _ in range(4)]
    return lambda step: made[step % 4]


def steps_of(blocks: int) -> int:
    return PAIRED + blocks * BLOCK + 1 if PAIRS else EQUAL_STEPS


def run_ddp(steps: int | None = None) -> dict[str, Any]:
    started()
    model = DistributedDataParallel(layers(2048, 12), device_ids=[0])
    return loop(model, pinned(1024, 2048), steps or steps_of(17), 2048)


def run_host() -> dict[str, Any]:
    started()
    model = DistributedDataParallel(layers(64, 12), device_ids=[0])
    return loop(model, pinned(64, 64), steps_of(61), 64)


def run_fsdp() -> dict[str, Any]:
    started()
    model = layers(1024, 6)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return loop(model, pinned(2048, 1024), steps_of(21), 1024)


def run_compiled() -> dict[str, Any]:
    started()
    return loop(torch.compile(layers(512, 4)), pinned(1024, 512), steps_of(0), 512)


def run_graph() -> dict[str, Any]:
    started()
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, device="cuda") for _ in range(4)])
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
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = one()
    losses = []
    for step in range(50):
        static.copy_(torch.full((64, 512), 0.1 * (step % 5)))
        graph.replay()
        losses.append(loss.clone())
    return {"blocks": [], "digest": digest([torch.stack(losses), *model.parameters()])}


def run_hf() -> dict[str, Any]:
    from transformers import (  # noqa: PLC0415
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Tokens(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> dict[str, Any]:
            row = (torch.arange(256) * 7 + index) % 1000
            return {"input_ids": row, "labels": row}

    blocks, losses = Blocks(), []

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            blocks.step()

        def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
            losses.append(logs.get("loss"))

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    config = GPT2Config(
        n_layer=8, n_embd=768, n_head=12, vocab_size=1000, n_positions=256, attn_implementation="eager"
    )
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        setattr(config, name, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps_of(15),
            per_device_train_batch_size=16,
            report_to=[],
            logging_steps=20,
            save_strategy="no",
            disable_tqdm=True,
            bf16=True,
            dataloader_num_workers=2,
            learning_rate=1e-4,
        )
        model = GPT2LMHeadModel(config)
        Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Watch()]).train()
    weights = digest(list(model.parameters()))
    return {"blocks": blocks.times, "digest": f"{weights} {hash(tuple(map(str, losses)))}"}


def run_loader() -> dict[str, Any]:
    class Slow(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 600

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.002)
            return torch.full((64,), float(index))

    started()
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, device="cuda") for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Slow(), batch_size=10, pin_memory=True):
        model(batch.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"blocks": [], "digest": digest(list(model.parameters()))}


PROGRAMS: dict[str, Callable[[], dict[str, Any]]] = {
    "ddp": run_ddp, "host": run_host, "fsdp": run_fsdp, "compiled": run_compiled, "graph": run_graph,
    "hf": run_hf, "loader": run_loader, "sampled": lambda: run_ddp(steps=LEARNED + 65),
}  # fmt: skip


# --- runs ------------------------------------------------------------------------------------------------


def run(name: str, kind: str, folder: Path) -> dict[str, Any]:
    """One run of a program in a child of this process: `plain`, `hooks`, or `pairs` of blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    before, sys_out = time.monotonic(), folder / "output.txt"
    child = os.fork()
    if not child:
        code = 1
        try:
            _inside(name, kind, folder, sys_out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() - before > PATIENCE_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.1)
    answer = folder / "answer.json"
    found = json.loads(answer.read_text()) if answer.is_file() else {"blocks": [], "digest": None}
    lines = sys_out.read_text(errors="replace").splitlines()
    said = [line for line in lines if line.startswith("[aorta]")] + (lines[-6:] if ended[1] else [])
    return found | {"status": ended[1], "seconds": time.monotonic() - before, "said": said}


def _inside(name: str, kind: str, folder: Path, output: Path) -> None:
    """The child: a rank of one."""
    global PAIRS  # noqa: PLW0603 - a process of its own
    with output.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if kind != "plain":
        capture = {"warmup_steps": WARMUP, "kernel_interval": 20 if name == "sampled" else 0}
        capture |= {"detail_interval": 2} if kind == "pairs" else {}
        os.environ |= {"AORTA_INSTRUMENT": "auto", "AORTA_RUN_DIR": str(folder)}
        os.environ["AORTA_CAPTURE"] = json.dumps(capture)
        SWITCH.driver = start.install()
    PAIRS = kind == "pairs"
    found = PROGRAMS[name]()
    (folder / "answer.json").write_text(json.dumps(found))
    if SWITCH.driver is not None:
        SWITCH.driver.finish()


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rank_0_metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def cost(blocks: list[tuple[str, float]]) -> str:
    """Each block with hooks over the mean of its plain neighbours: median and quartiles."""
    ratios: dict[str, list[float]] = {"whole": [], "detailed": []}
    plain = [ms for kind, ms in blocks if kind == "plain"]
    for at in range(1, len(blocks) - 1):
        kind, ms = blocks[at]
        if kind != "plain":
            ratios[kind].append(ms / statistics.fmean((blocks[at - 1][1], blocks[at + 1][1])))
    if len(ratios["whole"]) < 3 or len(ratios["detailed"]) < 3:
        return f"too few blocks: {len(blocks)}"
    middle = {kind: statistics.median(found) for kind, found in ratios.items()}
    spread = {kind: statistics.quantiles(found, n=4) for kind, found in ratios.items()}
    both = middle["whole"] * (1 - DETAILED_SHARE) + middle["detailed"] * DETAILED_SHARE
    parts = [
        f"{kind} {middle[kind]:.4f} (quartiles {spread[kind][0]:.4f} to {spread[kind][2]:.4f}, {len(found)})"
        for kind, found in ratios.items()
    ]
    return f"plain step {statistics.median(plain):.3f} ms; {', '.join(parts)}, all steps {both:.4f}"


def seen(folder: Path) -> str:
    """What the records of a run hold, in one line."""
    found = records(folder)
    detailed = [one for one in found if one["breakdown"] and one["phase"] == "steady"]
    if not detailed:
        return f"{len(found)} records, none steady and detailed"
    parts = {
        key.removesuffix("_ns"): sum((one["breakdown"][key] or 0) / 1e6 for one in detailed) / len(detailed)
        for key in detailed[0]["breakdown"]
    }
    tags = sorted({f"{p['stream']}/{p['tag']}" for one in detailed for p in one["profile"]["ranges"]})
    shown = " ".join(f"{key} {value:.2f}" for key, value in parts.items())
    return f"{len(found)} records, {len(detailed)} detailed: {shown}; {', '.join(tags)}"


def agreement(folder: Path) -> str:
    """Compute by event windows over the kernels of the same steps."""
    ratios = [
        one["breakdown"]["compute_ns"] / 1e6 / one["execution"]["per_stream_ms"]["compute"]
        for one in records(folder)
        if one.get("execution") and one["breakdown"]
    ]
    return f"windows / kernels {[round(ratio, 4) for ratio in ratios]}"


JOBS = (
    ("ddp", ("plain", "hooks")),
    ("host", ("pairs",)),
    ("fsdp", ("plain", "hooks")),
    ("hf", ("plain", "hooks")),
    ("ddp", ("pairs",)),
    ("compiled", ("plain", "hooks")),
    ("graph", ("plain", "hooks")),
    ("host", ("plain", "hooks")),
    ("loader", ("hooks",)),
    ("hf", ("pairs",)),
    ("fsdp", ("pairs",)),
    ("sampled", ("hooks",)),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("own_program_gpu"))
    parser.add_argument("--seconds", type=float, default=230.0)
    options = parser.parse_args()
    with contextlib.suppress(ImportError):
        import transformers  # noqa: F401, PLC0415 - once, before the forks
    began, results = time.monotonic(), []
    for name, kinds in JOBS:
        made = {}
        for kind in kinds:
            left = options.seconds - (time.monotonic() - began)
            if left < 12:
                print(f"{name} {kind}: out of time", flush=True)
                continue
            made[kind] = run(name, kind, (options.output / f"{name}-{kind}").absolute())
            results.append({"name": name, "kind": kind} | made[kind])
        ends = {kind: (one["status"], round(one["seconds"])) for kind, one in made.items()}
        print(f"{name}: status and seconds {ends}", flush=True)
        if len(made) == 2:
            digests = {one["digest"] for one in made.values()}
            print("    equal" if len(digests) == 1 and None not in digests else f"    DIFFERENT {digests}")
        if "pairs" in made:
            print("    cost:", cost(made["pairs"]["blocks"]))
        if "hooks" in made:
            print("    seen:", seen(options.output / f"{name}-hooks"))
        if name == "sampled" and made:
            print("    agreement:", agreement(options.output / f"{name}-hooks"))
        for line in [line for one in made.values() for line in one["said"]]:
            print("    said:", line[:200])
    (options.output / "results.json").write_text(json.dumps(results, indent=1))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
