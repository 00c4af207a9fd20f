"""The work of each rank, and its start."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from aorta.errors import ConfigError
from aorta.instrument.identity import Identity
from aorta.workloads.ddp_benchmark import launch
from aorta.workloads.ddp_benchmark.compare import compare
from aorta.workloads.ddp_benchmark.model import parameter_count
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.tracing import trace

log = logging.getLogger(__name__)

CORE_FLOP_PER_S = 5e10
"""A CPU core at matrix products, in order of magnitude."""

WORTH_SAYING_S = 120.0


def run(options: BenchmarkOptions) -> bool:
    """Run on all ranks, starting them where no launcher has.

    Returns:
        Whether this process reports: the one that started the ranks, or rank 0 of a launcher.

    Raises:
        AortaError: see `launch`.
    """
    _check_folder(options)
    if launch.launched():
        if options.nproc is not None:
            raise ConfigError("--nproc is given, but a launcher has started the ranks", "leave out --nproc")
        agree(options, int(os.environ["WORLD_SIZE"]), ask=None)
        reporter = Identity.from_environment().rank == 0
        if reporter:
            announce(options, int(os.environ["WORLD_SIZE"]))
        record(run_rank)(options)
        return reporter
    ranks = launch.ranks_to_start(options.device, options.nproc)
    announce(options, ranks)
    agree(options, ranks, ask=_ask if sys.stdin is not None and sys.stdin.isatty() else None)
    launch.start(run_rank, ranks, options)
    return True


def _check_folder(options: BenchmarkOptions) -> None:
    """Make the output folder now, rather than fail when everything has been measured."""
    folder = options.profile_output_dir if options.profile else options.output_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        flag = "--profile-output-dir" if options.profile else "--output-dir"
        raise ConfigError(
            f"{flag} {folder}: {error.strerror}", "name a folder that can be written"
        ) from error


def run_rank(options: BenchmarkOptions) -> None:
    """Runs one rank, from joining the others to leaving them."""
    rank = Identity.from_environment().rank
    logging.basicConfig(
        level="INFO", format=f"%(asctime)s %(levelname)s rank {rank}: %(message)s", stream=sys.stdout
    )
    if options.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    with launch.joined(options.device, options.timeout_s) as world:
        (trace if options.profile else compare)(options, world)


def _ask(question: str) -> bool:
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def agree(options: BenchmarkOptions, ranks: int, *, ask: Callable[[str], bool] | None) -> None:
    """Return where the model fits the machine, or the user wants to train it anyway.

    Args:
        options: what is trained; `--device cpu` is consent.
        ranks: of all nodes.
        ask: asks the person at the terminal. None if no terminal is available.

    Raises:
        ConfigError: a model that is large for a CPU was chosen without a word about the CPU.
    """
    if launch.uses_gpu(options.device) or options.device == "cpu":
        return
    seconds = cpu_seconds(options, ranks)
    if seconds <= WORTH_SAYING_S or (ask is not None and ask("Train it on the CPU anyway?")):
        return
    raise ConfigError(
        f"there is no GPU, and this would take about {math.ceil(seconds / 60):,} minutes on the CPU",
        "add --cpu to train it anyway, or --preset small, which takes seconds",
    )


def _flop_per_step(options: BenchmarkOptions) -> int:
    # 6 FLOP a parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1).
    return 6 * parameter_count(options) * options.batch_size * options.context_length


def cpu_seconds(options: BenchmarkOptions, ranks: int) -> float:
    """Seconds that the cores of this machine take for all steps of all ranks, in order of magnitude."""
    count = 1 if options.profile else len(options.implementations)
    cores = len(os.sched_getaffinity(0))
    return _flop_per_step(options) * options.total_steps * count * ranks / (cores * CORE_FLOP_PER_S)


def announce(options: BenchmarkOptions, ranks: int) -> None:
    """Say before the start what is coming, and on a CPU how to make it smaller if it is large."""
    on_gpu = launch.uses_gpu(options.device)
    count = 1 if options.profile else len(options.implementations)
    tokens = options.batch_size * options.context_length
    print(
        f"{parameter_count(options):,} parameters, {ranks} rank(s) on {'GPU' if on_gpu else 'CPU'},"
        f" {tokens:,} tokens per rank and step ({_flop_per_step(options) / 1e12:.3g} TFLOP),"
        f" {options.total_steps} steps × {count} implementation(s)",
        flush=True,
    )
    cores, seconds = len(os.sched_getaffinity(0)), cpu_seconds(options, ranks)
    if not on_gpu and seconds > WORTH_SAYING_S:
        print(
            f"large for a CPU: about {math.ceil(seconds / 60):,} minutes on {cores} core(s), or more.\n"
            "  use --preset small, which takes seconds; or lower --num-layers, --d-model, --batch-size,"
            " --context-length, --num-epochs, --steps-per-epoch",
            flush=True,
        )
