"""The benchmark's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from aorta.errors import ConfigError

IMPLEMENTATIONS = ("ddp", "ddp_individual", "ddp_individual_v2", "ddp_bucketed", "torch_ddp")
"""In the order in which they are shown; the last one is the reference, which runs first."""

REFERENCE = "torch_ddp"

PRECISIONS = ("fp32", "tf32", "bf16")

MINIMUM_WARMUP_STEPS = 2
"""Steps that are never measured, warm-up epochs or not: allocations and lazy set-up fall into them."""

SMALL: dict[str, float] = {
    "vocab_size": 512,
    "context_length": 32,
    "d_model": 64,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 256,
    "batch_size": 4,
    "num_epochs": 4,
    "warmup_epochs": 1,
    "bucket_size_mb": 0.25,
}
"""`--preset small`: seconds on two CPU cores."""


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """Options of the benchmark. Fields are the flags of the same names."""

    vocab_size: int = 10_000
    context_length: int = 512
    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    d_ff: int = 3072
    rope_theta: float = 10_000.0
    batch_size: int = 32
    num_epochs: int = 10
    warmup_epochs: int = 3
    steps_per_epoch: int = 10
    bucket_size_mb: float = 100.0
    precision: str = "fp32"
    seed: int = 42
    device: str = "auto"
    nproc: int | None = None
    timeout_s: float = 300.0
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    output_dir: Path = Path("results/ddp_benchmark")
    profile: bool = False
    profile_implementation: str = "ddp"
    profile_output_dir: Path = Path("profiler_output")

    @property
    def bucket_bytes(self) -> int:
        """The largest bucket; MB are MiB, as in torch's `bucket_cap_mb`."""
        return int(self.bucket_size_mb * (1 << 20))

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises."""
        return self.warmup_epochs * self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Steps of one implementation."""
        return self.num_epochs * self.steps_per_epoch

    @property
    def first_steady_step(self) -> int:
        """The first step that is measured."""
        return max(self.warmup_steps, MINIMUM_WARMUP_STEPS)


def parser() -> argparse.ArgumentParser:
    """Every flag with its default in the help."""
    flags = argparse.ArgumentParser(
        prog="benchmark_ddp.py",
        description="Compare ways to average gradients. Start it alone or under torchrun.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument(
        "--preset",
        choices=("default", "small"),
        default="default",
        help="small: a model for a CPU; other flags still override it",
    )
    _model_flags(flags.add_argument_group("model"))
    _run_flags(flags.add_argument_group("run"))
    _profile_flags(flags.add_argument_group("profile mode"))
    return flags


def _model_flags(group: argparse._ArgumentGroup) -> None:
    for name, text in (
        ("vocab-size", "token ids"),
        ("context-length", "tokens per sample"),
        ("d-model", "width"),
        ("num-layers", "blocks"),
        ("num-heads", "attention heads per block"),
        ("d-ff", "width of the feed-forward part"),
    ):
        group.add_argument(f"--{name}", type=int, metavar="N", help=text)
    group.add_argument("--rope-theta", type=float, metavar="X", help="base of the rotary embedding")


def _run_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--batch-size", type=int, metavar="N", help="samples per rank and step")
    group.add_argument("--num-epochs", type=int, metavar="N", help="epochs per implementation")
    group.add_argument(
        "--warmup-epochs",
        type=int,
        metavar="N",
        help="epochs with a rising learning rate and gradient clipping; not measured",
    )
    group.add_argument(
        "--steps-per-epoch", type=int, metavar="N", help="optimizer steps per epoch: 10, or 2 in profile mode"
    )
    group.add_argument("--bucket-size-mb", type=float, metavar="MIB", help="largest bucket")
    group.add_argument("--precision", choices=PRECISIONS, help="tf32: fp32 with TF32 matmuls; bf16: autocast")
    group.add_argument(
        "--implementations",
        nargs="+",
        choices=IMPLEMENTATIONS,
        metavar="NAME",
        help="implementations to compare",
    )
    group.add_argument(
        "--nproc", type=int, metavar="N", help="ranks to start: 2 on CPU, or every visible GPU"
    )
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), help="auto: a GPU if there is one")
    group.add_argument(
        "--cpu",
        dest="device",
        action="store_const",
        const="cpu",
        default="auto",
        help="same as --device cpu: train on the CPU, however long that takes",
    )
    group.add_argument("--seed", type=int, metavar="N", help="random seed of weights and tokens")
    group.add_argument(
        "--timeout-s", type=float, metavar="S", help="time after which a waiting collective is an error"
    )
    group.add_argument("--output-dir", type=Path, metavar="DIR", help="folder for the results")


def _profile_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile", action="store_true", help="trace one implementation instead of comparing all"
    )
    group.add_argument(
        "--profile-implementation", choices=IMPLEMENTATIONS, metavar="NAME", help="implementation to trace"
    )
    group.add_argument("--profile-output-dir", type=Path, metavar="DIR", help="folder for traces and summary")


def parse(arguments: Sequence[str] | None = None) -> BenchmarkOptions:
    """The options of a command line.

    Raises:
        ConfigError: a value cannot work; names its flag.
        SystemExit: argparse refused a flag, or `--help`.
    """
    flags = parser()
    defaults = {item.name: item.default for item in fields(BenchmarkOptions)}
    flags.set_defaults(**defaults)
    first, _ = flags.parse_known_args(arguments)
    if first.preset == "small":
        flags.set_defaults(**SMALL)
    if first.profile:
        flags.set_defaults(steps_per_epoch=2)
    values = vars(flags.parse_args(arguments))
    del values["preset"]
    values["implementations"] = tuple(name for name in IMPLEMENTATIONS if name in values["implementations"])
    options = BenchmarkOptions(**values)
    check(options)
    return options


def check(options: BenchmarkOptions) -> None:
    """Refuse what cannot work.

    Raises:
        ConfigError: names the flag.
    """
    for name in (
        "vocab_size context_length d_model num_layers num_heads d_ff rope_theta batch_size num_epochs"
        " steps_per_epoch bucket_size_mb timeout_s"
    ).split():
        _require(getattr(options, name) > 0, name, getattr(options, name), "must be above 0")
    _require(options.warmup_epochs >= 0, "warmup_epochs", options.warmup_epochs, "must not be negative")
    _require(options.nproc is None or options.nproc > 0, "nproc", options.nproc, "must be above 0")
    if options.d_model % (2 * options.num_heads):
        raise ConfigError(
            f"--d-model is {options.d_model}: not a multiple of 2 × --num-heads = {2 * options.num_heads}",
            "choose a multiple: the rotary embedding turns pairs, so every head needs an even width",
        )
    if not options.profile and options.first_steady_step >= options.total_steps:
        raise ConfigError(
            f"no step is left to measure: {options.num_epochs} epochs × {options.steps_per_epoch} steps, of"
            f" which the first {options.first_steady_step} are warm-up",
            "raise --num-epochs or --steps-per-epoch, or lower --warmup-epochs",
        )


def _require(holds: bool, name: str, value: object, what: str) -> None:
    if not holds:
        raise ConfigError(f"--{name.replace('_', '-')} is {value}: {what}")
