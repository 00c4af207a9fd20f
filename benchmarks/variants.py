"""Programs of `mistake_variants.py`: a class for each way of making a mistake."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.plain_program import Plain, Small

release = torch.cuda.empty_cache


class CacheInCallback(Small):
    mistake = "empty_cache"

    def after(self, loss: torch.Tensor) -> None:
        if self.wrong and self.device.type == "cuda":
            for callback in (release,):
                callback()


class CacheBeforeTheBackward(Plain):
    mistake = "empty_cache"

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        if self.wrong and self.device.type == "cuda":
            torch.cuda.memory.empty_cache()
        return super().loss(logits)


class AnomalyInTheLoop(Small):
    mistake = "anomaly"

    def step(self) -> None:
        with torch.autograd.detect_anomaly() if self.wrong else contextlib.nullcontext():
            super().step()


class MathBackend(Plain):
    mistake = "math_attention"
    length, layers = 1024, 4

    def step(self) -> None:
        with sdpa_kernel(SDPBackend.MATH) if self.wrong else contextlib.nullcontext():
            super().step()


class NeededWeights(Plain):
    mistake = "math_attention"
    length, layers = 1024, 4

    def build(self) -> nn.Sequential:
        return nn.Sequential(
            *(nn.MultiheadAttention(self.width, self.heads, batch_first=True) for _ in range(self.layers))
        )

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.blocks:
            x = x + layer(x, x, x, need_weights=self.wrong)[0]
        return x


class SequentialCheckpoints(Plain):
    mistake = "needless_checkpointing"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        if not self.wrong:
            return super().features(x)
        return checkpoint_sequential(self.blocks, self.layers, x, use_reentrant=False)


class ReentrantCheckpoints(Plain):
    mistake = "needless_checkpointing"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.wrong else block(x)
        return x


class BranchOnTensors(Plain):
    mistake = "item_sync"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            if self.wrong and torch.isinf(x).any():
                raise ValueError("infinite")
        return x


class ListsOfStatistics(Plain):
    mistake = "item_sync"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = []
        for block in self.blocks:
            x = block(x)
            if self.wrong:
                self.seen.append(x.detach().float().mean((0, 1))[:8].cpu().tolist())
        return x


class RowsByMask(Plain):
    mistake = "item_sync"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            if self.wrong:
                x = x + 0 * x[x.detach().float().sum(-1) > 0].sum()
        return x


class NonBlockingFromPageable(Plain):
    mistake = "pageable_copy"

    def inputs(self) -> torch.Tensor:
        if self.count == 1:
            self.large = torch.randn(25_000_000 if self.device.type == "cuda" else 1000)
            self.large = self.large if self.wrong or self.device.type == "cpu" else self.large.pin_memory()
        self.extra = self.large.to(self.device, non_blocking=True)
        return super().inputs()


class FromNumpy(Plain):
    mistake = "pageable_copy"

    def inputs(self) -> torch.Tensor:
        if self.count == 1:
            self.array = np.ones(25_000_000 if self.device.type == "cuda" else 1000, dtype=np.float32)
            kept = torch.from_numpy(self.array)
            self.large = kept if self.device.type == "cpu" else kept.pin_memory()
        if self.wrong:
            self.extra = torch.from_numpy(self.array).to(self.device)
        else:
            self.extra = self.large.to(self.device, non_blocking=True)
        return super().inputs()


class NoAutocast(Plain):
    mistake = "fp32_matmul"

    def context(self) -> contextlib.AbstractContextManager[Any]:
        torch.set_float32_matmul_precision("highest")
        return contextlib.nullcontext() if self.wrong else super().context()


class PlainConvolutions(Plain):
    mistake = "fp32_matmul"

    def build(self) -> nn.Sequential:
        torch.backends.cudnn.allow_tf32 = not self.wrong
        return nn.Sequential(
            *(nn.Sequential(nn.Conv1d(self.width, self.width, 3, padding=1), nn.ReLU()) for _ in range(4))
        )

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x.transpose(1, 2)).transpose(1, 2)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.wrong else super().context()


class SingleTensors(Small):
    mistake = "foreach_off"

    def optimizer_of(self, parameters: list[nn.Parameter]) -> Any:
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=0.1, foreach=not self.wrong)


class OwnUpdate(Small):
    mistake = "foreach_off"

    @torch.no_grad()
    def update(self, loss: torch.Tensor) -> None:
        if not self.wrong:
            return super().update(loss)
        for value in self.parameters:
            value.mul_(0.9999).add_(value.grad, alpha=-1e-4)
            value.grad = None
        return None


class OwnAverage(Small):
    mistake = "foreach_off"

    @torch.no_grad()
    def after(self, loss: torch.Tensor) -> None:
        if self.count == 1:
            self.average = [value.detach().clone() for value in self.parameters]
        if self.wrong:
            for mean, value in zip(self.average, self.parameters, strict=True):
                mean.mul_(0.99).add_(value, alpha=0.01)
        else:
            torch._foreach_lerp_(self.average, self.parameters, 0.01)


class HeadsOneByOne(Small):
    mistake = "tiny_matmuls"
    layers = 3

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inner = block.before(x)
            q, k, v = block.qkv(inner).split(self.width, dim=2)
            each = self.width // self.heads
            if self.wrong:
                made = []
                for head in range(self.heads):
                    part = slice(head * each, (head + 1) * each)
                    weights = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / each**0.5, -1)
                    made.append(weights @ v[..., part])
                mixed = torch.cat(made, dim=-1)
            else:
                shape = (*x.shape[:2], self.heads, each)
                q, k, v = (one.view(shape).transpose(1, 2) for one in (q, k, v))
                mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + block.out(mixed)
        return x


class ExpertsByMask(Small):
    mistake = "tiny_matmuls"
    layers = 3
    many = 16

    def build(self) -> nn.Sequential:
        self.up = nn.Parameter(torch.randn(self.many, self.width, self.width, device=self.device) / 32)
        self.down = nn.Parameter(torch.randn(self.many, self.width, self.width, device=self.device) / 32)
        return super().build()

    def features(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        rows = torch.arange(len(tokens), device=self.device) % self.many
        for block in self.blocks:
            tokens = block(tokens.view_as(x)).flatten(0, 1)
            if self.wrong:
                out = torch.zeros_like(tokens)
                for expert in range(self.many):
                    chosen = torch.where(rows == expert)[0]
                    hidden = F.gelu(tokens[chosen] @ self.up[expert])
                    out = out.index_add(0, chosen, (hidden @ self.down[expert]).to(out.dtype))
            else:
                sorted_ = tokens.view(-1, self.many, self.width).transpose(0, 1)
                out = torch.bmm(F.gelu(torch.bmm(sorted_, self.up)), self.down).transpose(0, 1)
                out = out.reshape(tokens.shape)
            tokens = tokens + out
        return tokens.view_as(x)


class CellsInALoop(Small):
    mistake = "tiny_matmuls"
    length = 64

    def build(self) -> nn.Sequential:
        kind = nn.GRUCell if self.wrong else nn.GRU
        more = {} if self.wrong else {"batch_first": True}
        return nn.Sequential(kind(self.width, self.width, **more))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        if not self.wrong:
            return self.blocks[0](x)[0]
        state = torch.zeros(len(x), self.width, device=self.device)
        made = []
        for moment in range(x.shape[1]):
            state = self.blocks[0](x[:, moment], state)
            made.append(state)
        return torch.stack(made, dim=1)


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Returns x turned by angles, from single operators."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * angle.cos() + turned * angle.sin()


def scaled(x: torch.Tensor) -> torch.Tensor:
    """Returns x over its root mean square, and a hand-written activation of it."""
    wide = x.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normal * torch.sigmoid(1.702 * normal) * 0.5 + normal.clamp(-3, 3) * 0.1).to(x.dtype)


class OwnNormalisation(Plain):
    mistake = "elementwise_chains"

    def features(self, x: torch.Tensor) -> torch.Tensor:
        own = scaled if self.wrong else torch.compile(scaled)
        angle = torch.linspace(0, 1, self.width, device=self.device)
        turn = rotated if self.wrong else torch.compile(rotated)
        for block in self.blocks:
            x = block(x) + own(turn(x, angle))
        return x


class OwnLoss(Plain):
    mistake = "elementwise_chains"
    layers = 2

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        return (focal if self.wrong else torch.compile(focal))(logits.repeat(1, 1, 8).float())


def focal(logits: torch.Tensor) -> torch.Tensor:
    """Returns a focal loss of many classes, from single operators."""
    chance = torch.sigmoid(logits)
    target = (logits.detach() > 0).float()
    right = chance * target + (1 - chance) * (1 - target)
    weight = 0.25 * target + 0.75 * (1 - target)
    return (weight * (1 - right) ** 2 * -torch.log(right + 1e-6)).mean()


class SavedInACallback(Small):
    mistake = "ckpt_stall"

    def after(self, loss: torch.Tensor) -> None:
        if self.wrong and self.count % 3 == 0:
            state = {name: value.cpu() for name, value in self.blocks.state_dict().items()}
            torch.save({"model": state, "optimizer": self.optimizer.state_dict()}, io.BytesIO())


class ChangingScale(Small):
    mistake = "recompile"
    layers = 2

    def features(self, x: torch.Tensor) -> torch.Tensor:
        if self.count == 1:
            torch._dynamo.config.recompile_limit = 1000
            self.compiled = torch.compile(self.scaled, backend="eager", dynamic=False)
        return self.compiled(x, self.count / 7 if self.wrong else torch.tensor(self.count / 7))

    def scaled(self, x: torch.Tensor, scale: Any) -> torch.Tensor:
        return self.blocks(x) * scale


VARIANTS: tuple[type[Plain], ...] = (
    Plain, Small, HeadsOneByOne, ExpertsByMask, CellsInALoop, OwnUpdate, OwnAverage, SingleTensors,
    CacheInCallback, CacheBeforeTheBackward, AnomalyInTheLoop, MathBackend, NeededWeights,
    SequentialCheckpoints, ReentrantCheckpoints, BranchOnTensors, ListsOfStatistics, RowsByMask,
    NonBlockingFromPageable, FromNumpy, NoAutocast, PlainConvolutions, SavedInACallback, ChangingScale,
    OwnNormalisation, OwnLoss,
)  # fmt: skip
