"""Known bottlenecks put into a run, by the `faults` block: to see whether the analysis finds them.

Nothing of it shows in a record but the time that it costs, as with a real cause. What was put in is written
beside the run, where the analysis does not look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import msgspec
import torch
import torch.distributed as dist

from aorta.artefacts.io import write_json
from aorta.config import schema
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.units import BYTES_PER_MIB
from aorta.workloads.trainer.workload import Batch
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)

FILL_CHUNK_BYTES = 64 * BYTES_PER_MIB


def check_faults(config: schema.Config, ranks: int) -> None:
    """Refuse a fault that nothing would show of.

    Raises:
        ConfigError: names the key.
    """
    faults = config.faults
    beyond = [rank for rank in faults.ranks if rank >= ranks]
    if beyond:
        raise ConfigError(f"faults.ranks names rank {beyond[0]}, but there are {ranks} ranks", "count from 0")
    if faults.comm_mb and ranks == 1:
        raise ConfigError("faults.comm_mb is set, but a single rank cannot exchange data", "use more ranks")


class FaultInjector:
    """The faults of one rank; does nothing where none is configured.

    Raises:
        ConfigError: the GPU's memory is to be filled, and there is no GPU.
    """

    def __init__(self, config: schema.FaultsConfig, world: World, recorder: StepRecorder) -> None:
        self._world = world
        self._recorder = recorder
        self._config = config
        self._start_step = config.start_step
        self._mine = not config.ranks or world.rank in config.ranks
        self._step = 0
        self._held: list[torch.Tensor] = []
        if config == schema.FaultsConfig(stand_in_ms=config.stand_in_ms):
            return
        if world.rank == 0:
            log.warning("this run contains deliberate faults: see %s", recorder.run.injected)
            write_json(recorder.run.injected, msgspec.to_builtins(config))
        if config.gpu_memory_ratio and self._mine:
            self._fill(config.gpu_memory_ratio)
        size = config.matmul_size if config.compute_matmuls else 1
        self._left = torch.full((size, size), 1 / size, device=world.device)
        self._right, self._product = self._left.clone(), self._left.clone()
        self._extra = torch.zeros(int(config.comm_mb * BYTES_PER_MIB) // 4, device=world.device)

    @property
    def _on(self) -> bool:
        return self._mine and self._step >= self._start_step

    def batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """`source`, each batch later."""
        for batch in source:
            if self._on and self._config.loader_delay_ms:
                time.sleep(self._config.loader_delay_ms / 1000)
            yield batch

    def before_forward(self) -> None:
        """The host's delay: between the parts of a step."""
        if self._on and self._config.host_delay_ms:
            time.sleep(self._config.host_delay_ms / 1000)

    def in_forward(self) -> None:
        """More work for the device, or the time that it would take."""
        slept_ms = self._config.stand_in_ms + (self._config.compute_delay_ms if self._on else 0.0)
        if slept_ms:
            time.sleep(slept_ms / 1000)
        if not self._on:
            return
        for _ in range(self._config.compute_matmuls):
            torch.mm(self._left, self._right, out=self._product)
        for _ in range(self._config.tiny_kernels):
            self._left[:1, :1].mul_(1.0)

    def after_backward(self) -> None:
        """More to exchange, on all ranks."""
        if self._config.comm_mb and self._step >= self._start_step:
            group = dist.group.WORLD
            assert group is not None
            self._recorder.all_reduce(self._extra, group, "gradients")

    def end_step(self) -> None:
        """Count it."""
        self._step += 1

    def _fill(self, ratio: float) -> None:
        device = self._world.device
        if device.type != "cuda":
            raise ConfigError("faults.gpu_memory_ratio is set, but training is on the CPU", "use a GPU")
        free, total = torch.cuda.mem_get_info(device)
        missing = int(ratio * total) - (total - free)
        while missing >= FILL_CHUNK_BYTES:
            self._held.append(torch.empty(FILL_CHUNK_BYTES, dtype=torch.uint8, device=device))
            missing -= FILL_CHUNK_BYTES
