"""What two ranks check together: torchrun starts it from test_ranks.py, each rank writes a JSON file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from aorta.artefacts.step_names import COMMUNICATION_STREAMS
from aorta.config.schema import Config
from aorta.instrument import StepRecorder
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer.data import Batches
from aorta.workloads.trainer.loop import Loop
from aorta.workloads.trainer.optim import Updater
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.weights import Whole
from aorta.workloads.trainer.world import StopSignal, World, join
from tests.support.step_records import read_records
from tests.workloads.trainer.tiny import tiny

BUCKETS = "distributed.bucket_cap_mb=0.0005"
"""More than one bucket even in the tiny model."""


def digest(model: torch.nn.Module) -> str:
    """A hash of every weight, bit by bit."""
    state = hashlib.sha256()
    for value in whole(model).values():
        state.update(value.numpy().tobytes())
    return state.hexdigest()


def whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of all ranks' shares together, on every rank."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def train(config: Config, world: World) -> dict[str, Any]:
    """One run; its losses, weights and what its records say."""
    with StepRecorder(config.training.output_dir, world.device, capture=config.capture) as recorder:
        observer = Observer(world, config.training.log_interval, recorder.run.metrics_csv)
        recorder.listen(observer.see)
        outcome = Loop(config, Ranking(config), world, recorder, observer).run(StopSignal(world))
    records = read_records(recorder.run.root, world.rank)
    state = whole(outcome.model)
    weights: list[Any] = [None] * world.size
    dist.all_gather_object(weights, digest(outcome.model))
    return {
        "loss": [record.loss for record in records],
        "norm": [record.grad_norm for record in records],
        "samples": [record.samples for record in records],
        "detailed": [record.detailed for record in records],
        "ratio": [record.profile.overlap.overlap_ratio for record in records if record.profile],
        "collectives": [
            [item.metadata for item in record.profile.ranges if item.stream == "allreduce"]
            for record in records
            if record.profile
        ],
        "streams": [
            dict(
                Counter(item.stream for item in record.profile.ranges if item.stream in COMMUNICATION_STREAMS)
            )
            for record in records
            if record.profile
        ],
        "bytes": [
            sum(item.metadata["bytes"] for item in record.profile.ranges if item.stream == "allgather")
            for record in records
            if record.profile
        ],
        "exact": all(
            record.breakdown.compute_ns
            + record.breakdown.exposed_comm_ns
            + record.breakdown.data_wait_ns
            + record.breakdown.host_ns
            == record.mono_end_ns - record.mono_start_ns
            for record in records
            if record.breakdown
        ),
        "weights": weights,
        "state": [value.double().sum().item() for value in state.values()],
    }


def plain(config: Config, world: World) -> list[float]:
    """The same training with DDP's own exchange and no recorder: sums of the weights."""
    workload = Ranking(config)
    torch.manual_seed(config.training.seed)
    model = DistributedDataParallel(workload.model())
    torch.manual_seed(config.training.seed + 1 + world.rank)
    updater = Updater(Whole(model), config, world.device)
    batches = Batches(workload.dataset(), config, world)
    iterator = batches.epoch(0)
    for _ in range(config.training.max_steps):
        batch = next(iterator)
        updater.backward(workload.loss(model(batch), batch))
        updater.update()
    batches.close()
    return [value.double().sum().item() for value in model.module.state_dict().values()]


@contextmanager
def complaints() -> Iterator[list[str]]:
    """The warnings of the compiled model while this is entered."""
    told: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    handler, log = Handler(logging.WARNING), logging.getLogger("aorta.workloads.trainer.compiled")
    log.addHandler(handler)
    yield told
    log.removeHandler(handler)


def stopped(world: World) -> list[int]:
    """Answers of three exchanges when only rank 1 saw a signal, before the second."""
    stop = StopSignal(world)
    stop.install()
    answers = []
    for step in range(3):
        if step == 1 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        answers.append(stop.agreed())
    stop.settle()
    return answers


def main(folder: Path) -> None:
    """Every scenario, one after another."""
    found: dict[str, Any] = {}
    with join(tiny(folder)) as world:
        found["once"] = train(tiny(folder / "once", BUCKETS), world)
        found["again"] = train(tiny(folder / "again", BUCKETS), world)
        found["serial"] = train(tiny(folder / "serial", BUCKETS, "distributed.enable_overlap=false"), world)
        still = "model.dropout=0"
        found["whole"] = train(tiny(folder / "whole", still), world)
        parts = ["training.batch_size=2", "training.gradient_accumulation=2"]
        found["parts"] = train(tiny(folder / "parts", still, *parts), world)
        # Nearly all steps timed as a whole: gloo's threads and the reducer's take each other's locks then.
        whole_steps = ["capture.detail_interval=1000", "training.max_steps=300", "training.epochs=100"]
        found["seldom"] = train(tiny(folder / "seldom", BUCKETS, *whole_steps), world)
        compiled = ["compile.enabled=true", "compile.backend=aot_eager", "training.max_steps=2"]
        with complaints() as told:
            found["compiled"] = train(tiny(folder / "compiled", BUCKETS, *compiled), world)
        found["complaints"] = told
        found["plain"] = plain(tiny(folder / "plain"), world)
        found["stopped"] = stopped(world)
        rank = world.rank
    (folder / f"found_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
