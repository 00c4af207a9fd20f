"""The trainer's command line: `train.py` and `python -m aorta.workloads.trainer`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from aorta.config.load import load_config, save_config
from aorta.config.schema import Config
from aorta.errors import AortaError
from aorta.instrument import StepRecorder
from aorta.instrument.identity import Identity, run_directory
from aorta.workloads.dcrnn.flags import add_flags, check_flags, flag_overrides
from aorta.workloads.dcrnn.workload import DcrnnWorkload
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer.faults import check_faults
from aorta.workloads.trainer.loop import Loop
from aorta.workloads.trainer.parallel import check_strategy
from aorta.workloads.trainer.profiling import check_profiling
from aorta.workloads.trainer.rocm import adapt, sampled
from aorta.workloads.trainer.sidecar import monitored
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.workload import Workload
from aorta.workloads.trainer.world import StopSignal, World, join

log = logging.getLogger(__name__)

WORKLOADS: dict[str, Callable[[Config], Workload]] = {"ranking": Ranking, "dcrnn": DcrnnWorkload}
"""Values that `workload` may have."""


def parser() -> argparse.ArgumentParser:
    """The flags. `--override` takes several values and may be repeated; all of them count, in order."""
    flags = argparse.ArgumentParser(
        prog="train.py", description="Train a workload and write a record of every step.", allow_abbrev=False
    )
    flags.add_argument("--config", type=Path, metavar="FILE", help="YAML file; without it, the defaults")
    flags.add_argument(
        "--override",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY.SUB=VALUE",
        help="set single keys, such as training.max_steps=100",
    )
    flags.add_argument("--monitor-gpu", action="store_true", help="sample this node's GPUs during the run")
    flags.add_argument("--monitor-cpu", action="store_true", help="sample this node's CPUs during the run")
    flags.add_argument(
        "--enable-rocm-metrics",
        action="store_true",
        help="on ROCm: put the output of amd-smi or rocm-smi into the step records; elsewhere it only warns",
    )
    add_flags(flags)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, and turn errors of ours into one message.

    Returns:
        The exit code: 0 after the configured end, 128 + signal after an early stop, else the error's.
    """
    flags = parser().parse_args(arguments)
    try:
        # `record` leaves the reason of a failure where torchrun looks for it.
        code = record(run)(flags)
    except AortaError as error:
        sys.stdout.flush()
        print(f"aorta: {error}", file=sys.stderr)
        return error.exit_code
    return code if code is not None else 0


def run(flags: argparse.Namespace) -> int:
    """Train as the flags say."""
    config = load_config(flags.config, [*flag_overrides(flags), *flags.override])
    check_flags(flags, config)
    rank = Identity.from_environment().rank
    logging.basicConfig(
        level=config.logging.level,
        format=f"%(asctime)s %(levelname)s rank {rank}: %(message)s",
        stream=sys.stdout,
    )
    if config.training.cpu_threads:
        torch.set_num_threads(config.training.cpu_threads)
    named = [text.partition("=")[0] for text in flags.override]
    config, changed = adapt(config, torch.version.hip is not None, named)
    for what in changed if rank == 0 else ():
        log.warning("%s", what)
    check_profiling(config)
    check_strategy(config, rank)
    workload = WORKLOADS[config.workload](config)
    with join(config) as world:
        stop = StopSignal(world)
        stop.install()
        return train(config, workload, world, stop, flags)


def train(
    config: Config, workload: Workload, world: World, stop: StopSignal, flags: argparse.Namespace
) -> int:
    """Everything between joining the process group and leaving it."""
    workload.check(world.size)
    check_faults(config, world.size)
    recorder = StepRecorder(
        config.training.output_dir,
        world.device,
        capture=config.capture,
        stream_priority=config.distributed.stream_priority,
    )
    validation = workload.validation()
    columns = validation.columns if validation is not None else ()
    observer = Observer(world, config.training.log_interval, recorder.run.metrics_csv, columns)
    recorder.listen(observer.see)
    if world.rank == 0:
        log.info(
            "%s on %d rank(s), %s; records in %s",
            config.workload,
            world.size,
            world.device,
            recorder.run.root,
        )
        if run_directory() is None:
            save_config(config, recorder.run.config)
    monitors = monitored(recorder.run, world, config.monitor, flags.monitor_gpu, flags.monitor_cpu)
    smi = sampled(flags.enable_rocm_metrics, world.local_rank, config.monitor.interval_s)
    with monitors, smi as sampler, recorder:
        if sampler is not None:
            recorder.sample(sampler.take)
        outcome = Loop(config, workload, world, recorder, observer).run(stop)
    if outcome.stopped_by:
        name = signal.Signals(outcome.stopped_by).name
        log.warning("stopped by %s after %d steps; records are complete", name, outcome.steps)
        return 128 + outcome.stopped_by
    if world.rank == 0:
        log.info("done: %d steps", outcome.steps)
    return 0
