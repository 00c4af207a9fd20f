"""What the hooks of `aorta.inject` cost and see on one GPU, and whether results stay the same.

    python benchmarks/own_program_gpu.py --output DIR [--seconds 300]

Programs that know nothing of aorta run by turns with and without the hooks, each run a process of its own:

- `ddp`: a transformer with DDP on NCCL, bound by the GPU; `host`: steps of a few ms, bound by the host
- `fsdp`: `fully_shard`; `hf`: the Trainer of transformers; `compiled`: torch.compile; `graph`: a CUDA graph

It prints for each program: losses and weights equal or not, step time with over without
(medians of blocks of 30 steps, and how far runs scatter), and what the records hold. `sampled` compares event
windows with the kernels of the same steps. `loader` has a slow loader.
It needs torch alone (`hf`: transformers).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ROOT = Path(__file__).resolve().parents[1]
HOOKS = ROOT / "aorta" / "inject" / "site"
LEARNED, WARMUP, BLOCK = 2, 10, 30
"""Updates before the first record, steps of warm-up, and steps per block. The first block is detailed."""
DETAILED_SHARE = 1 / 40
PATIENCE_S = 100
TURNS = {"ddp": 3, "host": 3, "hf": 2, "fsdp": 1, "compiled": 1, "graph": 1}


# --- the programs: none of them knows of aorta ---------------------------------------------------------


class Blocks:
    """Times blocks of steps, each from one synchronisation to the next."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._sync, self._steps, self._since = torch.cuda.synchronize, 0, 0.0

    def step(self) -> None:
        """One step is over."""
        self._steps += 1
        at = self._steps - LEARNED - WARMUP
        if at >= 0 and at % BLOCK == 0:
            self._sync()
            now = time.perf_counter()
            if at:
                self.times.append(1000 * (now - self._since) / BLOCK)
            self._since = now


def digest(values: list[Any]) -> str:
    parts = [
        value.detach().double().cpu().numpy().tobytes() for value in values if isinstance(value, torch.Tensor)
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


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


def transformer(width: int, layers: int) -> Any:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, device="cuda")
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def pinned(batch: int, length: int, width: int) -> Callable[[int], Any]:
    made = [torch.randn(batch, length, width).pin_memory() for _ in range(4)]
    return lambda step: made[step % 4]


def run_ddp(width: int = 1024, layers: int = 8, steps: int = LEARNED + WARMUP + 4 * BLOCK) -> dict[str, Any]:
    started()
    model = DistributedDataParallel(transformer(width, layers), device_ids=[0])
    return loop(model, pinned(16, 512, width), steps, width)


def run_host() -> dict[str, Any]:
    started()
    model = DistributedDataParallel(transformer(64, 6), device_ids=[0])
    return loop(model, pinned(4, 16, 64), LEARNED + WARMUP + 20 * BLOCK, 64)


def run_fsdp() -> dict[str, Any]:
    started()
    model = transformer(1024, 6)
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
    return loop(model, pinned(16, 256, 1024), LEARNED + WARMUP + 4 * BLOCK, 1024)


def run_compiled() -> dict[str, Any]:
    started()
    model = torch.compile(
        torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(6)])
    )
    return loop(model, pinned(64, 64, 1024), LEARNED + WARMUP + 4 * BLOCK, 1024)


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
    config = GPT2Config(n_layer=8, n_embd=768, n_head=12, vocab_size=1000, n_positions=256)
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        setattr(config, name, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=LEARNED + WARMUP + 4 * BLOCK,
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
    "hf": run_hf, "loader": run_loader, "sampled": lambda: run_ddp(steps=LEARNED + 80),
}  # fmt: skip


# --- taking turns ----------------------------------------------------------------------------------


def run(name: str, hooks: bool, folder: Path) -> dict[str, Any]:
    """One run of a program in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    env = {key: value for key, value in os.environ.items() if not key.startswith("AORTA_")}
    env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    env |= {"PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if hooks:
        interval = 20 if name == "sampled" else 0
        env |= {"PYTHONPATH": str(HOOKS), "AORTA_INSTRUMENT": "auto", "AORTA_RUN_DIR": str(folder)}
        env["AORTA_CAPTURE"] = json.dumps({"warmup_steps": WARMUP, "kernel_interval": interval})
    command = [sys.executable, str(Path(__file__).resolve()), "--program", name]
    before = time.monotonic()
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = 124, "", str(error.stderr or b"")[-2000:]
    (folder / "stderr.txt").write_text(err)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"blocks": [], "digest": None}
    said = [line for line in err.splitlines() if line.startswith("[aorta]")]
    return found | {
        "code": code,
        "seconds": time.monotonic() - before,
        "said": said,
        "error": err[-600:] if code else "",
    }


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rank_0_metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def cost(plain: list[dict[str, Any]], hooked: list[dict[str, Any]]) -> str:
    """The step time with hooks over the one without: whole steps, detailed ones, and both by their share."""
    if not all(one["blocks"][1:] for one in (*plain, *hooked)):
        return "no blocks"

    def whole(one: dict[str, Any]) -> float:
        return statistics.median(one["blocks"][1:])

    base, own = [whole(one) for one in plain], [whole(one) for one in hooked]
    detailed = statistics.median(one["blocks"][0] for one in hooked) / statistics.median(
        one["blocks"][0] for one in plain
    )
    ratios = [a / b for a, b in zip(own, base)]  # noqa: B905 - the last turn may lack one
    ratio = statistics.median(own) / statistics.median(base)
    both = ratio * (1 - DETAILED_SHARE) + detailed * DETAILED_SHARE
    return (
        f"step {statistics.median(base):.3f} ms; whole steps {ratio:.4f} "
        f"(turns {min(ratios):.4f} to {max(ratios):.4f}), detailed {detailed:.4f}, all {both:.4f}"
    )


def seen(folder: Path) -> str:
    """What the records of a run hold, in one line."""
    found = records(folder)
    if not found:
        return "no records"
    detailed = [one for one in found if one["breakdown"] and one["phase"] == "steady"]
    parts: dict[str, float] = {}
    for one in detailed:
        for key, value in one["breakdown"].items():
            parts[key] = parts.get(key, 0) + (value or 0) / 1e6 / len(detailed)
    tags = sorted({f"{p['stream']}/{p['tag']}" for one in detailed for p in one["profile"]["ranges"]})
    untimed = sum(one.get("untimed_calls") or 0 for one in found if isinstance(one.get("untimed_calls"), int))
    shown = " ".join(f"{key.removesuffix('_ns')} {value:.2f}" for key, value in parts.items())
    return f"{len(found)} records, {len(detailed)} detailed: {shown}; {', '.join(tags)}; untimed {untimed}"


def agreement(folder: Path) -> str:
    """Compute by event windows over the kernels of the same steps."""
    ratios = [
        one["breakdown"]["compute_ns"] / 1e6 / one["execution"]["per_stream_ms"]["compute"]
        for one in records(folder)
        if one.get("execution") and one["breakdown"]
    ]
    return f"windows / kernels {[round(ratio, 4) for ratio in ratios]}" if ratios else "no sampled step"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", choices=sorted(PROGRAMS))
    parser.add_argument("--output", type=Path, default=Path("own_program_gpu"))
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    if options.program:
        found = PROGRAMS[options.program]()
        print(json.dumps(found), flush=True)
        return
    began, results = time.monotonic(), {}

    def left() -> float:
        return options.seconds - (time.monotonic() - began)

    for name in ("ddp", "loader", "sampled", "graph", "host", "hf", "fsdp", "compiled"):
        plain, hooked = [], []
        for turn in range(TURNS.get(name, 1)):
            if left() < 15:
                print(f"{name}: out of time after {turn} turns", flush=True)
                break
            folder = options.output / name / str(turn)
            order = (True, False) if turn % 2 else (False, True)
            for hooks in order if name in TURNS else (True,):
                (hooked if hooks else plain).append(
                    run(name, hooks, folder / ("hooks" if hooks else "plain"))
                )
        if not hooked:
            continue
        results[name] = {"plain": plain, "hooks": hooked}
        digests = {one["digest"] for one in (*plain, *hooked)}
        equal = (
            ""
            if not plain
            else "equal"
            if len(digests) == 1 and None not in digests
            else f"DIFFERENT {digests}"
        )
        codes = [one["code"] for one in (*plain, *hooked)]
        print(f"{name}: codes {codes} {equal} ({hooked[0]['seconds']:.0f} s a run)", flush=True)
        if name in ("ddp", "host", "hf", "fsdp", "compiled") and plain:
            print("    cost:", cost(plain, hooked))
        last = options.output / name / str(len(hooked) - 1) / "hooks"
        print("    seen:", seen(last))
        if name == "sampled":
            print("    agreement:", agreement(last))
        for one in (*plain, *hooked):
            for line in one["said"] + one["error"].splitlines()[-6:]:
                print("    said:", line)
    (options.output / "results.json").write_text(json.dumps(results, indent=1))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
