"""The flags of the traffic trainer: each one sets a key of the configuration."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aorta.config.schema import Config
from aorta.errors import ConfigError

PRECISIONS = {"fp32": "none", "fp16": "fp16", "bf16": "bf16"}
"""Values of `--precision`, and what `training.mixed_precision` calls them."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag, the key that it sets, and the value that it has without a configuration file."""

    name: str
    key: str
    default: str | None
    kind: Callable[[str], Any] = int

    @property
    def destination(self) -> str:
        """The attribute of the parsed flags."""
        return "dcrnn_" + self.name.removeprefix("--").replace("-", "_")


FLAGS = (
    Flag("--data", "dcrnn.data", None, str),
    Flag("--num-nodes", "dcrnn.num_nodes", None),
    Flag("--seq-len", "dcrnn.seq_len", "12"),
    Flag("--pred-len", "dcrnn.pred_len", "1"),
    Flag("--num-workers", "dataloader.num_workers", "4"),
    Flag("--epochs", "training.epochs", "1"),
    Flag("--batch-size", "training.batch_size", "32"),
    Flag("--lr", "optimizer.lr", "1e-3", float),
    Flag("--weight-decay", "optimizer.weight_decay", "1e-5", float),
    Flag("--precision", "training.mixed_precision", "none", str),
    Flag("--seed", "training.seed", "42"),
    Flag("--hidden-dim", "dcrnn.hidden_dim", "64"),
    Flag("--num-layers", "dcrnn.num_layers", "2"),
    Flag("--dropout", "dcrnn.dropout", "0.1", float),
    Flag("--results", "training.output_dir", None, str),
    Flag("--checkpoint-interval", "training.checkpoint_interval", "0"),
)

CONSTANT_RATE = ("training.max_steps=0", "scheduler.warmup_steps=0", f"scheduler.total_steps={10**12}")
"""Without a configuration file: epochs alone end the run, and the rate stays where `--lr` put it."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to the trainer's own."""
    group = parser.add_argument_group(
        "workload dcrnn",
        "Each flag sets a key; an --override of the same key takes precedence. Without --config, any of "
        "these flags selects this workload, and the other flags keep their documented values.",
    )
    for flag in FLAGS:
        known = f" ({flag.default} without --config)" if flag.default is not None else ""
        group.add_argument(
            flag.name,
            dest=flag.destination,
            type=flag.kind,
            choices=sorted(PRECISIONS) if flag.name == "--precision" else None,
            metavar=None if flag.name == "--precision" else "VALUE",
            help=flag.key + known,
        )


def given(flags: argparse.Namespace) -> dict[Flag, Any]:
    """The flags on the command line, with their values."""
    values = {flag: getattr(flags, flag.destination) for flag in FLAGS}
    return {flag: value for flag, value in values.items() if value is not None}


def flag_overrides(flags: argparse.Namespace) -> list[str]:
    """The flags as overrides, in the order of `FLAGS`; empty if none was given."""
    found = given(flags)
    if not found:
        return []
    overrides = []
    if flags.config is None:
        overrides = ["workload=dcrnn", "distributed.strategy=ddp", *CONSTANT_RATE]
        overrides += [f"{flag.key}={flag.default}" for flag in FLAGS if flag.default is not None]
    for flag, value in found.items():
        said = PRECISIONS[value] if flag.name == "--precision" else value
        # As JSON, so that a path is text whatever it looks like.
        overrides.append(f"{flag.key}={json.dumps(said)}")
    return overrides


def check_flags(flags: argparse.Namespace, config: Config) -> None:
    """The flags belong to one workload.

    Raises:
        ConfigError: one was given with another workload; names its key.
    """
    found = given(flags)
    if found and config.workload != "dcrnn":
        flag = next(iter(found))
        raise ConfigError(
            f"{flag.name} is a flag of workload dcrnn, and {flags.config} has workload {config.workload}",
            f"use --override {flag.key}=..., or --config config/dcrnn.yaml",
        )
