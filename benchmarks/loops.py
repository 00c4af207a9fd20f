"""What the benchmarks of the trainer share: one training loop, with and without instrumentation, and turns.

Every loop uses the same few batches, made before, so that no loader is in the way.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from ratios import Block
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from aorta.artefacts.step_record import StepRecord
from aorta.config import schema
from aorta.config.load import load_config
from aorta.instrument import StepRecorder, pending
from aorta.instrument.pending import BATCH_NS
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer import fsdp
from aorta.workloads.trainer.optim import Updater
from aorta.workloads.trainer.parallel import parallelize
from aorta.workloads.trainer.weights import Shares, Weights, Whole
from aorta.workloads.trainer.world import World

BATCHES = 4
SMALL = (
    "model.vocab_size=100 model.embedding_dim=8 model.num_dense_features=2 model.dense_dim=4"
    " model.model_dim=16 model.num_heads=2 model.num_layers=2 model.mlp_hidden_dim=32 dataset.vocab_size=100"
    " dataset.dense_dim=4 dataset.num_dense_features=2 dataset.sequence_length=8 dataset.sparse_features=4"
    " training.cpu_threads=1"
).split()
"""A model for trying a benchmark on a CPU; its numbers mean nothing."""
WIDE = "model.model_dim=2048 model.num_heads=16 model.mlp_hidden_dim=8192".split()
"""Enough work a kernel, with enough samples, for the GPU to be the bottleneck."""
MIN_TURNS = 3
FEATURES = 16
LONG = 1_000_000
"""Blocks from one that is timed part by part to the next: after the first, none."""


class Wide:
    """Two wide layers and little else: few kernels that take long, so that the host is far ahead of a GPU.

    Args:
        config: its `training` block gives the batch, `model.model_dim` the width.
    """

    def __init__(self, config: schema.Config) -> None:
        self._width = config.model.model_dim

    def dataset(self) -> Any:
        """A few narrow samples, again and again: copying them takes no time."""
        samples = torch.randn(BATCHES, FEATURES, generator=torch.Generator().manual_seed(0))
        return _Repeated([{"x": sample} for sample in samples])

    def model(self) -> nn.Module:
        """Features to the width, and two layers of width × width."""
        return _Layers(self._width)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The first wide layer; the others are the root's."""
        assert isinstance(model, _Layers)
        return [model.first]

    def loss(self, output: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Mean square."""
        del batch
        return output.float().square().mean()


class _Repeated:
    def __init__(self, samples: list[dict[str, torch.Tensor]]) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._samples[index % len(self._samples)]


class _Layers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(FEATURES, width, bias=False)
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.second(nn.functional.gelu(self.first(self.widen(batch["x"]))))
        return output


class _OnDevice:
    """A workload whose model is made on the GPU: drawing large weights on the CPU takes longer than a
    measurement.
    """

    def __init__(self, workload: Any, device: torch.device) -> None:
        self._workload, self._device = workload, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def model(self) -> nn.Module:
        with self._device:
            model: nn.Module = self._workload.model()
        return model


class Training:
    """One training run that advances when told to.

    Args:
        config: as the trainer reads it.
        world: this rank.
        folder: of the step records; None trains without any instrumentation: stock DDP, or FSDP2 with its own
            collectives.
        workload: what is trained.
    """

    def __init__(
        self,
        config: schema.Config,
        world: World,
        folder: Path | None,
        workload: Callable[[schema.Config], Any] = Ranking,
    ) -> None:
        self.config, self.world = config, world
        self.recorder: StepRecorder | None = None
        made = _OnDevice(workload(config), world.device)
        samples = made.dataset()
        size, first = config.training.batch_size, world.rank * BATCHES * config.training.batch_size
        self._batches = [
            _pinned(default_collate([samples[first + i * size + j] for j in range(size)]), world.device)
            for i in range(BATCHES)
        ]
        self._workload, self._drawn = made, 0
        torch.manual_seed(config.training.seed)
        if folder is not None:
            self.recorder = StepRecorder(
                folder,
                world.device,
                capture=config.capture,
                stream_priority=config.distributed.stream_priority,
            )
            parallel = parallelize(config, made, world, self.recorder)
            self.module, self._weights = parallel.module, parallel.weights
            self._call: Callable[[Any], torch.Tensor] = parallel
            self._exchange: Callable[[bool], Any] = parallel.exchange
        else:
            self._plain()
        torch.manual_seed(config.training.seed + 1 + world.rank)
        self._updater = Updater(self._weights, config, world.device)

    def _plain(self) -> None:
        config, world = self.config, self.world
        self.module = self._workload.model().to(world.device)
        if config.distributed.strategy == "fsdp":
            mesh = fsdp.make_mesh(config.fsdp, world)
            blocks = list(self._workload.blocks(self.module))
            fsdp.shard(self.module, blocks, mesh, config)
            fsdp.order(self.module, blocks, config)
            group = mesh.get_group("shard")
            self._weights: Weights = Shares(
                self.module,
                None if group.size() == 1 else lambda tensor, _: dist.all_reduce(tensor, group=group),
            )
            self._call = self.module
            root: Any = self.module

            def exchange(last: bool) -> Any:
                root.set_requires_gradient_sync(last)
                root.set_is_last_backward(last)
                return torch.enable_grad()

            self._exchange = exchange
            return
        ddp = DistributedDataParallel(
            self.module,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            bucket_cap_mb=config.distributed.bucket_cap_mb,
            gradient_as_bucket_view=True,
        )
        self._weights, self._call = Whole(self.module), ddp
        self._exchange = lambda last: torch.enable_grad() if last else ddp.no_sync()

    def _draw(self) -> dict[str, torch.Tensor]:
        batch = self._batches[self._drawn % BATCHES]
        self._drawn += 1
        return batch

    def step(self) -> torch.Tensor:
        """One optimizer step; its loss."""
        return self._recorded(self.recorder) if self.recorder is not None else self._unrecorded()

    def _unrecorded(self) -> torch.Tensor:
        parts = self.config.training.gradient_accumulation
        total = torch.zeros((), device=self.world.device)
        for part in range(parts):
            batch = {
                name: value.to(self.world.device, non_blocking=True) for name, value in self._draw().items()
            }
            with self._exchange(part == parts - 1):
                with self._updater.autocast():
                    loss = self._workload.loss(self._call(batch), batch) / parts
                self._updater.backward(loss)
            total += loss.detach()
        self._updater.update()
        return total

    def _recorded(self, recorder: StepRecorder) -> torch.Tensor:
        parts = self.config.training.gradient_accumulation
        total = torch.zeros((), device=self.world.device)
        with recorder.step(epoch=0, step=self._drawn // parts) as step:
            for part in range(parts):
                with recorder.data():
                    drawn = self._draw()
                batch = recorder.to_device(drawn)
                with self._exchange(part == parts - 1):
                    with recorder.forward(), self._updater.autocast():
                        loss = self._workload.loss(self._call(batch), batch) / parts
                    with recorder.backward():
                        self._updater.backward(loss)
                total += loss.detach()
            lr = self._updater.lr
            with recorder.optimizer():
                norm = self._updater.update()
            step.result(samples=self.config.training.batch_size, lr=lr, loss=total, grad_norm=norm)
        return total

    @property
    def waiting(self) -> int:
        """Steps that the recorder has not handed over yet."""
        return len(self.recorder._pending._open) if self.recorder is not None else 0

    @property
    def records(self) -> list[StepRecord]:
        """Those that are in the file: all of them after `close`."""
        assert self.recorder is not None
        lines = self.recorder.run.records(self.world.rank).read_bytes().splitlines()
        return [msgspec.json.decode(line, type=StepRecord) for line in lines]

    def close(self) -> None:
        """Complete the records."""
        if self.recorder is not None:
            self.recorder.close()


def _pinned(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    if device.type != "cuda":
        return batch
    return {name: value.pin_memory() for name, value in batch.items()}


def strategies(world: World) -> dict[str, list[str]]:
    """Overrides of each strategy by its name; hybrid sharding, in pairs, with four ranks or more."""
    found = {name: [f"distributed.strategy={name}"] for name in ("fsdp", "ddp")}
    if world.size >= 4 and world.size % 2 == 0:
        found["hybrid"] = [*found["fsdp"], "fsdp.sharding_strategy=hybrid_shard", "fsdp.shard_size=2"]
    return found


def settings(small: bool, *overrides: str) -> schema.Config:
    """The default configuration with overrides; of a model for a CPU where `small`."""
    return load_config(None, [*(SMALL if small else ()), *overrides])


def recording(config: schema.Config, interval: int) -> schema.Config:
    """With one of so many blocks timed part by part, the first of them from the first step on."""
    capture = msgspec.structs.replace(config.capture, warmup_steps=0, detail_interval=interval)
    return msgspec.structs.replace(config, capture=capture)


def shared_folder(world: World) -> Path:
    """A new temporary folder, the same on all ranks of this machine."""
    name = [tempfile.mkdtemp(prefix="aorta-bench-")]
    if world.control is not None:
        dist.broadcast_object_list(name, src=0, group=world.control)
    return Path(name[0])


def measured(training: Training, steps: int) -> Block:
    """Train so many steps."""
    world = training.world
    cuda = world.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(world.device)
    dist.barrier(group=world.control)
    waiting = training.waiting
    start = time.monotonic_ns()
    for _ in range(steps):
        training.step()
    queued = time.monotonic_ns() - start
    if cuda:
        torch.cuda.synchronize(world.device)
    handed = training.waiting != waiting + steps if training.recorder is not None else False
    taken = torch.tensor([(time.monotonic_ns() - start) / steps / 1e6, queued / steps / 1e6, float(handed)])
    dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=world.control)
    return Block(float(taken[0]), float(taken[1]), bool(taken[2]))


def take_turns(
    runs: Sequence[Training], alternations: int, steps: int, warmup: int, limit_s: float = math.inf
) -> list[list[Block]]:
    """Blocks of each run, one in each turn. A turn runs them all, in an order of its own: what a run leaves
    in the caches and queues is found by each of the others as often. Each recorder hands over what it has as
    often as in a run without turns.

    No turn begins after `limit_s` of measured time, three turns excepted. All ranks count the same time.
    """
    pending.BATCH_NS = len(runs) * BATCH_NS  # counted by the clock, which goes on in the turns of others
    for run in runs:
        measured(run, warmup)
    order, shuffle = list(range(len(runs))), random.Random(0)
    blocks: list[list[Block]] = [[] for _ in runs]
    spent_ms = 0.0
    for turn in range(alternations):
        if turn >= MIN_TURNS and spent_ms / 1000 > limit_s:
            break
        shuffle.shuffle(order)
        for index in order:
            blocks[index].append(measured(runs[index], steps))
            spent_ms += blocks[index][-1].ms * steps
    return blocks


def hardware(world: World) -> dict[str, Any]:
    """What the numbers were measured on."""
    cuda = world.device.type == "cuda"
    return {
        "ranks": world.size,
        "device": torch.cuda.get_device_name(world.device) if cuda else "cpu",
        "torch": torch.__version__,
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()) if cuda else None,
    }


def write(path: Path | None, world: World, content: dict[str, Any]) -> None:
    """The result as JSON, from rank 0."""
    if path is not None and world.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"hardware": hardware(world), **content}, indent=2) + "\n")


def say(world: World, text: str) -> None:
    """Print once."""
    if world.rank == 0:
        print(text, flush=True)
