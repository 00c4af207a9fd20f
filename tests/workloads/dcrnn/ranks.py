"""What some ranks check together: torchrun starts it from test_ranks.py, each rank writes a JSON file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from aorta.config.schema import Config
from aorta.instrument import StepRecorder
from aorta.workloads.dcrnn.workload import DcrnnWorkload
from aorta.workloads.trainer.loop import Loop
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.validation import Validator
from aorta.workloads.trainer.world import StopSignal, World, join
from tests.support.step_records import read_records
from tests.workloads.dcrnn.small import small


def validated(config: Config, world: World) -> dict[str, float]:
    """The errors of an untrained model, by all ranks together."""
    workload = DcrnnWorkload(config)
    torch.manual_seed(0)
    model = workload.model().eval()
    return Validator(workload.validation(), config, world).run(model)


def trained(config: Config, world: World) -> dict[str, Any]:
    """A run with validation and checkpoints after each epoch."""
    workload = DcrnnWorkload(config)
    with StepRecorder(config.training.output_dir, world.device, capture=config.capture) as recorder:
        columns = workload.validation().columns
        observer = Observer(world, 100, recorder.run.metrics_csv, columns)
        recorder.listen(observer.see)
        outcome = Loop(config, workload, world, recorder, observer).run(StopSignal(world))
    records = read_records(Path(config.training.output_dir), world.rank)
    return {
        "phases": [record.phase for record in records],
        "epochs": [record.epoch for record in records],
        "state": [value.double().sum().item() for value in outcome.model.state_dict().values()],
        "training": outcome.model.training,
    }


def main(folder: Path) -> None:
    """Every scenario, one after another."""
    found: dict[str, Any] = {}
    with join(small(folder)) as world:
        # 60 readings: 6 for validation would be 2 windows; 230 are 23 and 19, which 2 and 3 do not divide.
        found["validated"] = validated(small(folder, "dcrnn.num_steps=230"), world)
        for form in ("dense", "sparse"):
            settings = [f"dcrnn.supports={form}", "training.epochs=3", "training.max_steps=10"]
            settings += ["dcrnn.dropout=0", "training.checkpoint_interval=2"]
            found[form] = trained(small(folder / form, *settings), world)
        rank = world.rank
    (folder / f"found_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
