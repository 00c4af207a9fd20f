"""In the style of nanoGPT: batches from an array, gradient accumulation, evaluation and checkpoints between."""

import math
import os
import tempfile
import time
from contextlib import nullcontext

import numpy as np
import torch
from faults import FAULT, LOADER_S, RANK, STEPS, Takes, preprocess
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP

block_size, batch_size, gradient_accumulation_steps, vocab_size, n_embd = 16, 4, 2, 64, 32
eval_interval, eval_iters, grad_clip = 40, 2, 1.0
init_process_group("gloo")
ddp_rank = int(os.environ["RANK"])
torch.manual_seed(1337 + ddp_rank)
data = np.random.default_rng(0).integers(0, vocab_size, 10_000).astype(np.int64)


def get_batch(split):
    if FAULT == "loader" and RANK == 1 and split == "train":
        time.sleep(LOADER_S / gradient_accumulation_steps)
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size]) for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.takes = Takes(0.25)

    def forward(self, x):
        y = self.ln(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.takes(self.mlp(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(2)])
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        loss = functional.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))
        return logits, loss


model = DDP(GPT())
raw_model = model.module
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
ctx = nullcontext()


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch("val"))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / len(losses)


def get_lr(it):
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * it / STEPS)) * 9e-4


X, Y = get_batch("train")
iter_num = 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        estimate_loss()
        if ddp_rank == 0:
            with tempfile.TemporaryFile() as stream:
                torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    preprocess()
    iter_num += 1
    if iter_num > STEPS:
        break
destroy_process_group()
