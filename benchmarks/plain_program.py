"""A plain training loop of a small transformer, whose parts a variant of a mistake replaces."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Plain:
    """A training loop without a mistake."""

    mistake: ClassVar[str | None] = None
    width, heads, layers, length, batch = 1024, 16, 6, 512, 8

    def __init__(self, device: torch.device, fixed: bool) -> None:
        self.device, self.wrong = device, not fixed
        if device.type == "cpu":
            self.width, self.heads, self.layers, self.length, self.batch = 32, 4, 2, 16, 2
        self.blocks = self.build().to(device)
        self.head = nn.Linear(self.width, 1024).to(device)
        self.count = 0
        self.source = torch.randn(self.batch, self.length, self.width)
        self.pinned = self.source.pin_memory() if device.type == "cuda" else self.source
        self.parameters = [*self.blocks.parameters(), *self.head.parameters()]
        self.optimizer: Any = self.optimizer_of(self.parameters)

    def build(self) -> nn.Sequential:
        return nn.Sequential(*(Block(self.width, self.heads) for _ in range(self.layers)))

    def optimizer_of(self, parameters: list[nn.Parameter]) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-4, fused=self.device.type == "cuda")

    def inputs(self) -> torch.Tensor:
        return self.pinned.to(self.device, non_blocking=True)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), self.targets(logits))

    def targets(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros(logits.shape[0] * logits.shape[1], dtype=torch.long, device=self.device)

    def step(self) -> None:
        self.count += 1
        x = self.inputs()
        with self.context():
            loss = self.loss(self.head(self.features(x)))
        loss.backward()
        self.update(loss)
        self.after(loss)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def after(self, loss: torch.Tensor) -> None:
        """Do the work that follows the update; none here."""

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Small(Plain):
    """The same, with sizes at which the host is the limit."""

    width, heads, layers, length, batch = 512, 8, 6, 256, 4
