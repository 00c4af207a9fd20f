"""A loop with Hugging Face's accelerate, with gradient accumulation."""

import torch
from accelerate import Accelerator
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Takes(0.5), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Rows(STEPS * 16 * accelerator.num_processes, batch=16)
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (inputs, targets) in enumerate(loader):
    if step % 2 == 0:
        preprocess()
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
