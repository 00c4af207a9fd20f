"""This process among the others: rank, device, process group, and the agreed stop."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from aorta.config import schema
from aorta.errors import ConfigError, RunError
from aorta.instrument.identity import Identity

log = logging.getLogger(__name__)

LIBRARY_PREFIXES = ("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "HSA_", "UCX_", "FI_")
"""Prefixes that `distributed.env` may set: NCCL, RCCL, torch's use of them, gloo, ROCm's runtime, fabrics."""


@dataclass(frozen=True, slots=True)
class World:
    """This process among the others.

    `control` is a gloo group beside the gradients' one, for a few bytes on the host: agreeing to stop,
    adding up an epoch. None for a single process.
    """

    rank: int
    local_rank: int
    size: int
    node_index: int
    device: torch.device
    control: dist.ProcessGroup | None


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of this rank: CUDA ordinal = local rank, among the GPUs that this process may see.

    Raises:
        ConfigError: CUDA was asked for and there is none.
        RunError: more ranks on this node than GPUs.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise ConfigError("training.device is 'cuda', but torch sees no GPU here", "use auto or cpu")
    if wanted == "cpu" or not available:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise RunError(
            f"local rank {local_rank} has no GPU: {count} visible",
            "start at most one rank per visible GPU (--nproc-per-node, CUDA_VISIBLE_DEVICES)",
        )
    return torch.device("cuda", local_rank)


def choose_backend(wanted: str, device: torch.device) -> str:
    """`nccl` on GPUs and `gloo` on the host, unless the configuration says otherwise.

    Raises:
        ConfigError: NCCL without GPUs.
    """
    if wanted == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if wanted == "nccl" and device.type != "cuda":
        raise ConfigError("distributed.backend is 'nccl', which needs GPUs", "use auto or gloo")
    return wanted


def set_environment(variables: Mapping[str, str | int]) -> None:
    """Set variables of the communication library before it reads them, and say so.

    Raises:
        ConfigError: a name does not belong to such a library.
    """
    for name, number_or_text in variables.items():
        value = str(number_or_text)
        if not name.startswith(LIBRARY_PREFIXES):
            raise ConfigError(
                f"distributed.env.{name}: not a variable of a communication library",
                f"use a variable whose name starts with {', '.join(LIBRARY_PREFIXES)}",
            )
        if os.environ.get(name, value) != value:
            log.warning(
                "%s was %r in the environment; distributed.env sets it to %r", name, os.environ[name], value
            )
        os.environ[name] = value
    if variables:
        log.info("distributed.env: %s", ", ".join(f"{name}={value}" for name, value in variables.items()))


@contextmanager
def join(config: schema.Config) -> Iterator[World]:
    """Join the process group of the launcher, and leave it in order; without a launcher this is rank 0 of
    1.
    """
    who = Identity.from_environment()
    device = choose_device(config.training.device, who.local_rank)
    backend = choose_backend(config.distributed.backend, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    set_environment(config.distributed.env)
    control = None
    timeout = timedelta(seconds=config.distributed.timeout_s)
    bound = device if backend == "nccl" else None
    if who.world_size > 1:
        dist.init_process_group(backend, timeout=timeout, device_id=bound)
        control = dist.new_group(backend="gloo", timeout=timeout)
    elif config.distributed.strategy == "fsdp":
        # Sharding over one rank shares nothing, but is the same code; it needs a group, not a launcher.
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=bound)
    yield World(who.rank, who.local_rank, who.world_size, who.node_index, device, control)
    # Only after an orderly end: with a collective under way this waits for peers that may be gone, while the
    # end of the process tells them at once.
    if dist.is_initialized():
        dist.destroy_process_group()
        workers_idle()


def workers_idle(tasks: Path = Path("/proc/self/task"), limit_s: float = 5.0) -> bool:
    """Wait until the worker threads of gloo have let go of the last collective; False after `limit_s`.

    DDP keeps its process group alive past `destroy_process_group`, and with it gloo's workers. One that is
    still dropping a tensor when the interpreter shuts down asks for its lock, is unwound instead, and takes
    the whole process down with SIGABRT: a finished rank would look killed. A worker without work sleeps.
    """
    deadline = time.monotonic() + limit_s
    asleep = 0
    while asleep < 3:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)  # also gives the interpreter's lock to a worker that waits for it
        asleep = asleep + 1 if _gloo_workers(tasks) <= {"S"} else 0
    return True


def _gloo_workers(tasks: Path) -> set[str]:
    """Scheduler states of gloo's worker threads, read from proc(5) `stat`: `pid (name) state ...`."""
    states = set()
    for stat in tasks.glob("*/stat"):
        with suppress(OSError):  # a thread that ended meanwhile
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            if name.startswith("pt_gloo"):
                states.add(rest.split()[0])
    return states


class StopSignal:
    """SIGTERM and SIGINT, agreed between the ranks so that none is left alone in a collective.

    After each step the ranks exchange the number of the signal that they saw, on the control group and in
    the background; the answer is looked at after the next step, when it has long arrived. So all ranks stop
    after the same step, one step later than the first of them could have, and none waits for it. The
    exchange takes a few bytes per step and lies in no range.
    """

    def __init__(self, world: World) -> None:
        self._group = world.control
        self._seen = 0
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def install(self) -> None:
        """Take both signals. A second one changes nothing: the launcher kills when its grace is over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._notice)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._seen = self._seen or number

    def agreed(self) -> int:
        """The signal at which every rank stops after this step, 0 for none. Every rank calls it after every
        step.
        """
        if self._group is None:
            return self._seen
        previous = self.settle()
        self._flag = torch.tensor([self._seen], dtype=torch.int32)
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return previous

    def settle(self) -> int:
        """Complete the exchange under way, as every rank must before the group is left; its answer or 0."""
        if self._work is None:
            return 0
        self._work.wait()
        self._work = None
        return int(self._flag.item())
