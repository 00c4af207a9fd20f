"""A configuration that trains in milliseconds."""

from __future__ import annotations

from pathlib import Path

from aorta.config.load import load_config
from aorta.config.schema import Config

OVERRIDES = (
    "training.batch_size=4 training.mixed_precision=none training.max_steps=4 training.cpu_threads=1"
    " training.log_interval=2 dataset.num_samples=64 dataset.sequence_length=4 dataset.dense_dim=4"
    " dataset.sparse_features=2 dataset.vocab_size=50 dataset.num_dense_features=2 model.vocab_size=50"
    " model.embedding_dim=4 model.num_dense_features=2 model.dense_dim=4 model.model_dim=8 model.num_heads=2"
    " model.num_layers=1 model.mlp_hidden_dim=8 dataloader.num_workers=0 capture.warmup_steps=1"
    " optimizer.lr=0.01 scheduler.warmup_steps=1 distributed.strategy=ddp"
).split()


def tiny(output: Path, *overrides: str) -> Config:
    """The tiny configuration, writing to `output`."""
    return load_config(None, [*OVERRIDES, f"training.output_dir={output}", *overrides])
