"""What ranks check together about FSDP2: torchrun starts it from test_sharded.py, each writes a JSON file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from aorta.config.schema import Config
from aorta.instrument import StepRecorder
from aorta.instrument.sharding import ShardedExchange
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer.fsdp import Sharded
from aorta.workloads.trainer.world import World, join
from tests.support.step_records import read_records
from tests.workloads.trainer.ranks import digest, train
from tests.workloads.trainer.tiny import tiny

TWO_LAYERS = ["model.num_layers=2", "model.dropout=0"]
FSDP = ["distributed.strategy=fsdp", *TWO_LAYERS]

RUNS = {
    "ddp": TWO_LAYERS,
    "full": FSDP,
    "again": FSDP,
    "keep": [*FSDP, "fsdp.sharding_strategy=shard_grad_op"],
    "none": [*FSDP, "fsdp.sharding_strategy=no_shard"],
    "meta": [*FSDP, "fsdp.param_init_device=meta"],
    "parts": [*FSDP, "training.batch_size=2", "training.gradient_accumulation=2"],
    "hybrid": [*FSDP, "fsdp.sharding_strategy=hybrid_shard", "fsdp.shard_size=2"],
    "late": [*FSDP, "fsdp.backward_prefetch=NONE", "fsdp.forward_prefetch=false"],
    "serial": [*FSDP, "distributed.enable_overlap=false"],
    "bf16": [*FSDP, "training.mixed_precision=bf16"],
    "fp16": [*FSDP, "training.mixed_precision=fp16"],
    "ddp_bf16": [*TWO_LAYERS, "training.mixed_precision=bf16"],
    "unclipped": [*FSDP, "training.grad_clip_norm=0"],
    "compiled": [*FSDP, "compile.enabled=true", "compile.backend=aot_eager", "training.max_steps=2"],
}


@contextmanager
def order_of(model: Sharded) -> Iterator[list[str]]:
    """Which weights are asked for, and which block computes, in the order in which it happens."""
    seen: list[str] = []
    gather = ShardedExchange.gather

    def noted(self: ShardedExchange, output: torch.Tensor, *rest: Any) -> None:
        seen.append(f"gather {output.numel()}")
        gather(self, output, *rest)

    handles = []
    for index, layer in enumerate(model.module.encoder.layers):
        handles.append(layer.linear1.register_forward_hook(lambda *a, i=index: seen.append(f"forward {i}")))
        handles.append(
            layer.linear1.register_full_backward_hook(lambda *a, i=index: seen.append(f"backward {i}"))
        )
    ShardedExchange.gather = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        ShardedExchange.gather = gather  # type: ignore[method-assign]
        for handle in handles:
            handle.remove()


@contextmanager
def watched() -> Iterator[list[tuple[str, str, str]]]:
    """The hooks that a GPU needs, on the host: a name for each moment that they take."""
    taken: list[tuple[str, str, str]] = []
    install, opened, closed = ShardedExchange.install, ShardedExchange._open, ShardedExchange._close
    computed = ShardedExchange._note_computed

    def install_all(self: ShardedExchange, model: torch.nn.Module) -> tuple[str, ...]:
        names = install(self, model)
        parts = [model, *model.encoder.layers]  # type: ignore[union-attr]
        self._parts = [(part, part is model) for part in parts]
        self.watch(True)
        return names

    def name(module: torch.nn.Module) -> str:
        return type(module).__name__.removeprefix("FSDP")

    def note_open(self: ShardedExchange, module: torch.nn.Module, way: str) -> None:
        taken.append(("open", way, name(module)))
        opened(self, module, way)

    def note_close(self: ShardedExchange, module: torch.nn.Module, way: str) -> None:
        taken.append(("close", way, name(module)))
        closed(self, module, way)

    def note_computed(self: ShardedExchange, gradient: torch.Tensor) -> None:
        taken.append(("computed", "backward", ""))
        computed(self, gradient)

    ShardedExchange.install = install_all  # type: ignore[method-assign]
    ShardedExchange._open = note_open  # type: ignore[method-assign]
    ShardedExchange._close = note_close  # type: ignore[method-assign]
    ShardedExchange._note_computed = note_computed  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        ShardedExchange.install = install  # type: ignore[method-assign]
        ShardedExchange._open = opened  # type: ignore[method-assign]
        ShardedExchange._close = closed  # type: ignore[method-assign]
        ShardedExchange._note_computed = computed  # type: ignore[method-assign]


def order(config: Config, world: World) -> list[str]:
    """The order of one step without its update."""
    torch.manual_seed(0)
    with StepRecorder(config.training.output_dir, world.device) as recorder:
        model = Sharded(Ranking(config), config, world, recorder)
        batch = torch.utils.data.default_collate([Ranking(config).dataset()[i] for i in range(4)])
        model(batch).sum().backward()  # the first pass finds the order
        with order_of(model) as seen:
            model(batch).sum().backward()
    return seen


def places(config: Config, world: World) -> list[str]:
    """The devices on which this rank makes weights, one after another."""
    made: list[str] = []

    class Noted(Ranking):
        def model(self) -> torch.nn.Module:
            made.append(torch.empty(0).device.type)
            return super().model()

    with StepRecorder(config.training.output_dir, world.device) as recorder:
        Sharded(Noted(config), config, world, recorder)
    return made


def start(config: Config, world: World) -> str:
    """The weights that a model starts with, when every rank makes its own."""
    torch.manual_seed(world.rank)
    with StepRecorder(config.training.output_dir, world.device) as recorder:
        return digest(Sharded(Ranking(config), config, world, recorder).module)


def own_calls(folder: Path, world: World) -> dict[str, Any]:
    """A program that reduces its gradients itself, sometimes without waiting."""
    before = dist.all_reduce
    with StepRecorder(folder, world.device) as recorder:
        for index in range(2):
            with recorder.step(epoch=0, step=index) as step:
                value = torch.full((1000,), float(world.rank))
                dist.all_reduce(value)
                work = dist.all_reduce(value, async_op=True)
                assert work is not None
                work.wait()
                gathered = [torch.empty(1000) for _ in range(world.size)]
                dist.all_gather(gathered, value)
                step.result(samples=1, lr=0.1)
        dist.all_reduce(value)  # outside of a step
    records = read_records(folder, world.rank)
    return {
        "untouched": dist.all_reduce is before,
        "untimed": [record.untimed_calls for record in records],
        "value": value[0].item(),
        "ranges": [
            sorted(
                (item.stream, item.metadata["op"], item.metadata["seq"], item.metadata["bytes"])
                for item in record.profile.ranges
                if item.metadata
            )
            for record in records
        ],
        "comm": [record.breakdown.comm_ns for record in records],
    }


def main(folder: Path, names: list[str]) -> None:
    """The named runs, and with two ranks the other checks."""
    found: dict[str, Any] = {}
    with join(tiny(folder)) as world:
        for name in names or list(RUNS):
            found[name] = train(tiny(folder / name, *RUNS[name]), world)
        if not names:
            found["order"] = order(tiny(folder / "order", *FSDP), world)
            found["order_late"] = order(tiny(folder / "order_late", *RUNS["late"]), world)
            for name, key in (
                ("forward", "fsdp.forward_prefetch=false"),
                ("backward", "fsdp.backward_prefetch=NONE"),
                ("serial", "distributed.enable_overlap=false"),
            ):
                found[f"order_{name}"] = order(tiny(folder / f"order_{name}", *FSDP, key), world)
            for place in ("cpu", "meta"):
                settings = tiny(folder / f"made_{place}", *FSDP, f"fsdp.param_init_device={place}")
                found[f"made_{place}"] = places(settings, world)
            found["start"] = start(tiny(folder / "start", *FSDP), world)
            torch.manual_seed(0)
            found["rank0"] = digest(Ranking(tiny(folder, *FSDP)).model())
            found["apart"] = start(tiny(folder / "apart", *FSDP, "fsdp.sync_module_states=false"), world)
            with watched() as taken:
                found["watched"] = train(tiny(folder / "watched", *FSDP), world)
            found["moments"] = taken[: len(taken) // 4]
            with watched():
                found["watched_compiled"] = train(tiny(folder / "wcompiled", *RUNS["compiled"]), world)
            found["own"] = own_calls(folder / "own", world)
        rank = world.rank
    (folder / f"found_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
