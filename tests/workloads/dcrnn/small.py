"""A configuration that trains in milliseconds."""

from __future__ import annotations

from pathlib import Path

from aorta.config.load import load_config
from aorta.config.schema import Config

OVERRIDES = (
    "workload=dcrnn distributed.strategy=ddp training.batch_size=4 training.mixed_precision=none"
    " training.max_steps=4 training.cpu_threads=1 training.log_interval=2 dcrnn.num_nodes=3"
    " dcrnn.num_steps=60 dcrnn.seq_len=3 dcrnn.pred_len=2 dcrnn.hidden_dim=4 dcrnn.num_layers=2"
    " dataloader.num_workers=0 capture.warmup_steps=1 optimizer.lr=0.01 scheduler.warmup_steps=1"
).split()


def small(output: Path, *overrides: str) -> Config:
    """It, writing to `output`."""
    return load_config(None, [*OVERRIDES, f"training.output_dir={output}", *overrides])
