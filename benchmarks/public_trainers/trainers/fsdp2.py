"""FSDP2: `fully_shard` on each block and on the model."""

import torch
import torch.distributed as dist
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(16, 64),
    *[nn.Sequential(nn.Linear(64, 64), nn.ReLU(), Takes(0.5)) for _ in range(2)],
    nn.Linear(64, 1),
)
for block in model:
    if isinstance(block, nn.Sequential):
        fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Rows(STEPS * 8 * dist.get_world_size())
for inputs, targets in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    preprocess()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
