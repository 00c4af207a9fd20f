"""DeepSpeed, ZeRO stage as the first argument."""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

stage = int(sys.argv[1])
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Takes(), nn.Linear(64, 1))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": stage},
    "zero_allow_untested_optimizer": True,
}
engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
data = Rows(STEPS * 16)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
for inputs, targets in loader:
    preprocess()
    loss = nn.functional.mse_loss(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
