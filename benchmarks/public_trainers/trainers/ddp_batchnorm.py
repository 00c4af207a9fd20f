"""DDP with BatchNorm, whose buffers are broadcast in each step."""

import torch
import torch.distributed as dist
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), Takes(), nn.Linear(64, 1))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
data = Rows(STEPS * 8 * dist.get_world_size())
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
for inputs, targets in loader:
    preprocess()
    optimizer.zero_grad(set_to_none=True)
    nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
dist.destroy_process_group()
