"""torch.compile with a way back."""

from __future__ import annotations

import logging

import torch
from torch import nn

from aorta.config import schema
from aorta.workloads.trainer.workload import Batch

log = logging.getLogger(__name__)

REASON_LENGTH = 300
"""Characters of a compiler's complaint that are worth a log line."""


class Compiled:
    """torch.compile that falls back to eager, with the reason, when the first call shows that it cannot
    work here.
    """

    def __init__(self, module: nn.Module, config: schema.CompileConfig) -> None:
        self._eager = module
        self._proven = False
        if config.options:
            log.info("compile.options are given: compile.mode is not in use (torch takes one of the two)")
        self._call = torch.compile(
            module,
            backend=config.backend,
            fullgraph=config.fullgraph,
            dynamic=config.dynamic,
            mode=None if config.options or config.backend != "inductor" else config.mode,
            options=config.options or None,
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The compiled model's output, or the eager one's after a failed first call."""
        if self._proven:
            return self._call(batch)
        self._proven = True
        try:  # a compiler fails in any way it likes
            return self._call(batch)
        except Exception as error:
            reason = " ".join(str(error).split())[:REASON_LENGTH]
            log.warning(
                "torch.compile failed, training goes on without it: %s: %s", type(error).__name__, reason
            )
            self._call = self._eager
            return self._call(batch)
