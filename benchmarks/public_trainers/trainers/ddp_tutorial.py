"""In the style of PyTorch's DDP tutorial: a loop over a DataLoader with a DistributedSampler."""

import torch
import torch.distributed as dist
from faults import RANK, STEPS, Rows, Takes, preprocess
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(16, 64)
        self.takes = Takes()
        self.net2 = nn.Linear(64, 1)

    def forward(self, x):
        return self.net2(self.takes(torch.relu(self.net1(x))))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Rows(STEPS * 8 * dist.get_world_size())
    sampler = DistributedSampler(data)
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            preprocess()
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
    print(f"rank {RANK}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
