"""torch.compile around a DDP model."""

import torch
import torch.distributed as dist
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64)), backend="aot_eager"
        )
        self.takes = Takes()
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.takes(self.inner(x)))


model = torch.compile(DistributedDataParallel(Net()), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = Rows(STEPS * 8 * dist.get_world_size())
for inputs, targets in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    preprocess()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
dist.destroy_process_group()
