"""The network of the plain trainer: a small transformer without anything special."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from aorta.workloads.mistakes.options import MistakeOptions

_EXPERTS = 32
"""Experts of `tiny_matmuls`, each for the same number of tokens."""


def gelu_by_hand(x: torch.Tensor) -> torch.Tensor:
    """Returns the tanh approximation of GELU, from single operators."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


class Experts(nn.Module):
    """A feed-forward network of many small experts, one after the other or all in one product."""

    def __init__(self, options: MistakeOptions) -> None:
        super().__init__()
        width = options.width
        self.alone = options.wrong("tiny_matmuls")
        each = [torch.randn(width, width) / math.sqrt(width) for _ in range(2 * _EXPERTS)]
        ups, downs = each[:_EXPERTS], each[_EXPERTS:]
        self.ups = nn.ParameterList(ups if self.alone else [torch.stack(ups)])
        self.downs = nn.ParameterList(downs if self.alone else [torch.stack(downs)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The experts' outputs, of the shape of `x`."""
        tokens = x.reshape(_EXPERTS, -1, x.shape[-1])
        if self.alone:
            made = [
                nn.functional.gelu(part @ up) @ down
                for part, up, down in zip(tokens.unbind(), self.ups, self.downs, strict=True)
            ]
            return torch.stack(made).view_as(x)
        hidden = nn.functional.gelu(torch.bmm(tokens, self.ups[0]))
        return torch.bmm(hidden, self.downs[0]).view_as(x)


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, options: MistakeOptions) -> None:
        super().__init__()
        width = options.width
        self.heads = options.heads
        self.materialise = options.wrong("math_attention")
        self.read_back = options.wrong("item_sync")
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(options) if options.mistake == "tiny_matmuls" else None
        if self.experts is None:
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation: Callable[[torch.Tensor], torch.Tensor] = nn.functional.gelu
        if options.mistake == "elementwise_chains":
            self.activation = torch.compile(gelu_by_hand) if options.fixed else gelu_by_hand
        self.bad = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, of the shape of `x`."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.before(x)).split(width, dim=2)
        )
        if self.materialise:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        else:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = self.between(x)
        x = x + (self.experts(inner) if self.experts else self.down(self.activation(self.up(inner))))
        if self.read_back:
            self.bad += int(x.isnan().any().item())
        return x


class Network(nn.Module):
    """Token embedding, blocks, and the logits."""

    def __init__(self, options: MistakeOptions) -> None:
        super().__init__()
        self.embed = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.ModuleList(TransformerBlock(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)
        self.recompute = options.wrong("needless_checkpointing")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))
