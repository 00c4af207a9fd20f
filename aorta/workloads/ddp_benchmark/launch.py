"""Ranks: those that a launcher started, or some started here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from aorta.errors import ConfigError, RunError
from aorta.instrument.identity import Identity
from aorta.workloads.trainer.world import World, choose_backend, choose_device

CPU_RANKS = 2


def launched(environment: Mapping[str, str] | None = None) -> bool:
    """True if torchrun, or another launcher that sets its variables, started this process as a rank."""
    env = os.environ if environment is None else environment
    return "RANK" in env and "WORLD_SIZE" in env


def uses_gpu(device: str) -> bool:
    """True if ranks run on GPUs.

    Raises:
        ConfigError: CUDA was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError(
            "--device is 'cuda', but torch sees no GPU here", "use --device auto or --device cpu"
        )
    return device != "cpu" and available


def ranks_to_start(device: str, wanted: int | None) -> int:
    """The number of ranks of a start without a launcher: every visible GPU, or two on the host.

    Raises:
        ConfigError: more ranks than GPUs, or CUDA without one.
    """
    if not uses_gpu(device):
        return wanted or CPU_RANKS
    count = torch.cuda.device_count()
    if wanted is not None and wanted > count:
        raise ConfigError(
            f"--nproc is {wanted}, but {count} GPU(s) are visible",
            "give at most one rank per GPU, or use --device cpu",
        )
    return wanted or count


@contextmanager
def joined(device: str, timeout_s: float) -> Iterator[World]:
    """Join the process group, also of a single rank, on the device of the local rank.

    It is left in order only after an orderly end: an error ends the process, which its peers notice.

    Raises:
        ConfigError: CUDA was asked for and there is none.
        RunError: more ranks on this node than GPUs.
    """
    who = Identity.from_environment()
    own = choose_device(device, who.local_rank)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    elif "OMP_NUM_THREADS" not in os.environ:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // here, 1))
    dist.init_process_group(
        choose_backend("auto", own),
        timeout=timedelta(seconds=timeout_s),
        device_id=own if own.type == "cuda" else None,
    )
    yield World(who.rank, who.local_rank, who.world_size, who.node_index, own, None)
    dist.destroy_process_group()


def start(function: Callable[..., None], ranks: int, *arguments: Any) -> None:
    """Run `function(*arguments)` as `ranks` processes on this machine, with the variables of torchrun.

    The first rank that fails ends the others; on a signal all are ended.

    Args:
        function: importable by name.
        ranks: processes.
        arguments: handed to each; pickled.

    Raises:
        RunError: a rank failed, or a signal came; says which and why.
    """
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="ddp_benchmark",
        local_addr="127.0.0.1",  # the ranks are all here; a machine's own name need not resolve
        max_restarts=0,
        monitor_interval=0.1,
    )
    # It would print the traceback of every rank that went down after the first.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        elastic_launch(settings, function)(*arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        said, traceback = _reason(failure)
        print(traceback, end="", file=sys.stderr)
        raise RunError(
            f"rank {rank} failed (exit code {failure.exitcode}): {said}; the other ranks were stopped"
        ) from None
    except SignalException as error:
        raise RunError(f"stopped by {error.sigval.name}; every rank was stopped") from None


def _reason(failure: ProcessFailure) -> tuple[str, str]:
    """The message of a rank that failed, and its traceback if it left one.

    The error file holds both; a rank that was killed left none.
    """
    said: Any = failure.message  # annotated as text, but what an error file holds is a dictionary
    if not isinstance(said, dict):
        return str(said), ""
    return str(said.get("message", "")), str(said.get("extraInfo", {}).get("py_callstack", ""))
