"""A decoder-only transformer with rotary positions, and tokens for it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from aorta.workloads.ddp_benchmark.options import BenchmarkOptions

BATCHES = 8
"""Different batches of a rank; they repeat."""


class Rotary(nn.Module):
    """Turns pairs of features by an angle that grows with the position (RoFormer, Su et al. 2021, eq. 34).

    Pair i of a head of width d turns by position × theta^(−2i/d). The tables are no buffers, because DDP
    would broadcast those every step: build the model on its device.
    """

    def __init__(self, width: int, context_length: int, theta: float) -> None:
        super().__init__()
        frequency = theta ** -(torch.arange(0, width, 2).double() / width)
        angle = torch.outer(torch.arange(context_length).double(), frequency)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Turn `value` of shape (batch, heads, tokens, width); pair i is features i and i + width / 2."""
        tokens = value.shape[-2]
        cos, sin = self.cos[:tokens].to(value.dtype), self.sin[:tokens].to(value.dtype)
        first, second = value.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention, heads turned by `Rotary`."""

    def __init__(self, options: BenchmarkOptions) -> None:
        super().__init__()
        self.heads = options.num_heads
        self.qkv = nn.Linear(options.d_model, 3 * options.d_model, bias=False)
        self.out = nn.Linear(options.d_model, options.d_model, bias=False)
        self.rotary = Rotary(options.d_model // options.num_heads, options.context_length, options.rope_theta)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, d_model) to the same."""
        batch, tokens, width = value.shape
        heads = self.qkv(value).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, content = heads.unbind()
        mixed = functional.scaled_dot_product_attention(
            self.rotary(query), self.rotary(key), content, is_causal=True
        )
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return result


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) × up(x))."""

    def __init__(self, options: BenchmarkOptions) -> None:
        super().__init__()
        self.gate = nn.Linear(options.d_model, options.d_ff, bias=False)
        self.up = nn.Linear(options.d_model, options.d_ff, bias=False)
        self.down = nn.Linear(options.d_ff, options.d_model, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, d_model) to the same."""
        result: torch.Tensor = self.down(functional.silu(self.gate(value)) * self.up(value))
        return result


class DecoderBlock(nn.Module):
    """Norm-first attention and feed-forward, each added to its input."""

    def __init__(self, options: BenchmarkOptions) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(options.d_model, eps=1e-5)
        self.attention = Attention(options)
        self.feed_forward_norm = nn.RMSNorm(options.d_model, eps=1e-5)
        self.feed_forward = FeedForward(options)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, d_model) to the same."""
        value = value + self.attention(self.attention_norm(value))
        return value + self.feed_forward(self.feed_forward_norm(value))


class LanguageModel(nn.Module):
    """Logits of the next token. Parameters are registered in the order of their use."""

    def __init__(self, options: BenchmarkOptions) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocab_size, options.d_model)
        self.blocks = nn.ModuleList(DecoderBlock(options) for _ in range(options.num_layers))
        self.norm = nn.RMSNorm(options.d_model, eps=1e-5)
        self.head = nn.Linear(options.d_model, options.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) of ids to (batch, tokens, vocab_size)."""
        value = self.embedding(tokens)
        for block in self.blocks:
            value = block(value)
        logits: torch.Tensor = self.head(self.norm(value))
        return logits


def parameter_count(options: BenchmarkOptions) -> int:
    """Parameters of `LanguageModel`, without building it."""
    width = options.d_model
    block = 4 * width * width + 3 * width * options.d_ff + 2 * width
    return 2 * options.vocab_size * width + options.num_layers * block + width


def token_batches(options: BenchmarkOptions, rank: int, device: torch.device) -> list[torch.Tensor]:
    """`BATCHES` int64 tensors of (batch_size, context_length + 1), a function of seed and rank.

    Small ids are more frequent, as in text, so that there is something to learn.
    """
    random = torch.Generator().manual_seed(options.seed * 1_000_003 + rank)
    shape = (BATCHES, options.batch_size, options.context_length + 1)
    ids = (options.vocab_size * torch.rand(shape, generator=random) ** 3).long()
    return list(ids.clamp_(max=options.vocab_size - 1).to(device))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of `tokens[:, 1:]` given logits of `tokens[:, :-1]`."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
