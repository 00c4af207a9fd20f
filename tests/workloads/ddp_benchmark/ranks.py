"""What two ranks check together; test_ranks.py starts it as `compare FOLDER` or `fail HOW`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from aorta.errors import AortaError
from aorta.workloads.ddp_benchmark import launch
from aorta.workloads.ddp_benchmark.bucketed import Bucketed
from aorta.workloads.ddp_benchmark.communicator import Communicator
from aorta.workloads.ddp_benchmark.individual import Individual, IndividualV2, Synchronous
from aorta.workloads.ddp_benchmark.interface import Implementation
from aorta.workloads.ddp_benchmark.model import LanguageModel, loss_of, token_batches
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.reference import TorchDdp
from aorta.workloads.ddp_benchmark.timing import BACKWARD, FORWARD, SYNC, StepTimer
from aorta.workloads.trainer.world import World

STEPS = 5
BUCKET = 300
"""Bytes: several buckets in the small models, and parameters that are larger than one."""

SMALL = BenchmarkOptions(
    vocab_size=23, context_length=6, d_model=8, num_layers=2, num_heads=2, d_ff=12, batch_size=3
)


class Odd(nn.Module):
    """Everything at once: tied weights, a frozen parameter, one that no rank uses, one that only rank 1 uses,
    and branches whose order differs between ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.left = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.sometimes = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embedding(tokens) * self.frozen
        branches = [self.left, self.right]
        if dist.get_rank() == 1:
            value = value * self.sometimes
            branches.reverse()
        value = value + sum(branch(value).tanh() for branch in branches)
        output: torch.Tensor = self.head(value)
        return output


def implementations(communicator: Communicator, find_unused: bool) -> list[Implementation]:
    return [
        TorchDdp(communicator, BUCKET, find_unused=find_unused),
        TorchDdp(communicator, BUCKET, observed=True, find_unused=find_unused),
        Synchronous(communicator),
        Individual(communicator),
        IndividualV2(communicator),
        Bucketed(communicator, BUCKET),
    ]


def train(implementation: Implementation, model: nn.Module, timer: StepTimer, world: World) -> dict[str, Any]:
    """Some steps, each rank on its own tokens; what the weights and gradients are then."""
    call = implementation.prepare(model)
    # Weight decay shows whether a parameter that no rank used is left alone.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3)
    options = (
        SMALL
        if isinstance(model, LanguageModel)
        else BenchmarkOptions(vocab_size=11, context_length=5, batch_size=2)
    )
    batches = token_batches(options, world.rank, world.device)
    places: list[list[int]] = []
    absent: list[str] = []

    def step(index: int) -> None:
        with timer.range(FORWARD):
            loss = loss_of(call(batches[index][:, :-1]), batches[index])
        with timer.range(BACKWARD):
            loss.backward()
        with timer.range(SYNC):
            implementation.after_backward()
            implementation.finish()
        timer.loss(loss.detach())

    for index in range(STEPS):
        with timer.step(index):
            step(index)
        gradients = [value.grad for value in model.parameters() if value.grad is not None]
        places.append(sorted({storage(gradient) for gradient in gradients}))
        absent = [name for name, value in model.named_parameters() if value.grad is None]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    weights = [value.detach().flatten().tolist() for value in model.parameters()]
    everywhere: list[Any] = [None] * world.size
    dist.all_gather_object(everywhere, weights)
    return {
        "weights": weights,
        "same": all(other == weights for other in everywhere),
        "absent": absent,
        "places": places,
        "samples": [
            {
                "total": sample.end - sample.start,
                "comm": sample.comm,
                "hidden": sample.hidden,
                "exposed": sample.exposed,
                "collectives": sample.collectives,
                "bytes": sample.bytes,
            }
            for sample in timer.samples()
        ],
    }


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def mean_of_ranks(communicator: Communicator, world: World) -> dict[str, list[float]]:
    """The gradient of w × (rank + 1) is rank + 1: 1 and 2."""
    found = {}
    for implementation in implementations(communicator, False):
        model = nn.Linear(1, 1, bias=False)
        call = implementation.prepare(model)
        call(torch.full((1, 1), float(world.rank + 1))).sum().backward()
        implementation.after_backward()
        implementation.finish()
        assert model.weight.grad is not None
        found[type(implementation).__name__] = model.weight.grad.flatten().tolist()
    return found


def kept_gradients(communicator: Communicator) -> list[float]:
    """Two bucketed steps where gradients are zeroed in place, so that autograd adds into the bucket."""
    implementation, model = Bucketed(communicator, BUCKET), nn.Linear(1, 1, bias=False)
    call = implementation.prepare(model)
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        call(torch.full((1, 1), float(dist.get_rank() + 1))).sum().backward()
        implementation.after_backward()
        implementation.finish()
    assert model.weight.grad is not None
    return model.weight.grad.flatten().tolist()


def compare(folder: str) -> None:
    found: dict[str, Any] = {}
    with launch.joined("cpu", 60) as world:
        for kind in ("plain", "odd"):
            results = []
            for number in range(6):
                timer = StepTimer(world.device, observed=number > 0)
                communicator = Communicator(world.device, timer.clock, timer.open_tape)
                # Each rank builds other weights: only the broadcast can make them equal.
                torch.manual_seed(1000 * world.rank)
                model = LanguageModel(SMALL) if kind == "plain" else Odd()
                implementation = implementations(communicator, kind == "odd")[number]
                result = train(implementation, model, timer, world)
                if isinstance(implementation, Bucketed):
                    result["buckets"] = [bucket.indices for bucket in implementation.buckets]
                    result["sent"] = [value.numel() for value in implementation.parameters]
                    result["flats"] = sorted(storage(bucket.flat) for bucket in implementation.buckets)
                results.append({"name": implementation.name} | result)
            found[kind] = results
        timer = StepTimer(world.device, observed=True)
        communicator = Communicator(world.device, timer.clock, timer.open_tape)
        found["mean"] = mean_of_ranks(communicator, world)
        found["kept"] = kept_gradients(communicator)
    Path(folder, f"found_{world.rank}.json").write_text(json.dumps(found))


def fail(how: str) -> None:
    """Rank 1 goes down while rank 0 waits for it."""
    with launch.joined("cpu", 60) as world:
        if world.rank == 1:
            if how == "error":
                raise ValueError("rank 1 had enough")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print("waiting", flush=True)
            time.sleep(600)
        dist.all_reduce(torch.zeros(1))


if __name__ == "__main__":
    try:
        launch.start({"compare": compare, "fail": fail}[sys.argv[1]], 2, sys.argv[2])
    except AortaError as error:
        sys.exit(f"aorta: {error}")
