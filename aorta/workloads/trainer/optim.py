"""The update: AdamW, warm-up and cosine, mixed precision, clipping."""

from __future__ import annotations

import math

import torch
from torch.nn.utils import clip_grads_with_norm_

from aorta.config import schema
from aorta.workloads.trainer.weights import Weights

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


def lr_factor(step: int, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak rate in `step`: (step+1)/warmup in the warm-up, then a cosine from 1 to 0 at
    `total_steps`.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return 0.5 * (1 + math.cos(math.pi * progress))


class Updater:
    """Backward and update of one configuration's optimizer."""

    def __init__(self, weights: Weights, config: schema.Config, device: torch.device) -> None:
        self._weights = weights
        self._clip = config.training.grad_clip_norm
        self._device = device
        self._dtype = AUTOCAST.get(config.training.mixed_precision)
        # FSDP2 casts at the borders of its modules, by its own policy.
        self._cast = self._dtype is not None and config.distributed.strategy == "ddp"
        self._optimizer = torch.optim.AdamW(
            weights.parameters,
            lr=config.optimizer.lr,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
            fused=device.type == "cuda",
        )
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer,
            lambda step: lr_factor(step, config.scheduler.warmup_steps, config.scheduler.total_steps),
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._dtype is torch.float16)

    @property
    def lr(self) -> float:
        """The rate that the next update uses."""
        return float(self._optimizer.param_groups[0]["lr"])

    def autocast(self) -> torch.autocast:
        """The forward pass's context."""
        return torch.autocast(self._device.type, dtype=self._dtype, enabled=self._cast)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, scaled in fp16 so that small ones survive."""
        self._scaler.scale(loss).backward()

    def update(self) -> torch.Tensor | None:
        """Clip, step, clear.

        Returns:
            The total gradient norm before clipping, equal on all ranks; None with clipping off (it is then
            not computed).
        """
        norm = None
        self._weights.collect()
        if self._scaler.is_enabled():
            self._weights.share_overflow()
        if self._clip > 0:
            self._scaler.unscale_(self._optimizer)
            norm = self._weights.norm()
            clip_grads_with_norm_(self._weights.parameters, self._clip, norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._scheduler.step()
        self._weights.clear()
        return norm
