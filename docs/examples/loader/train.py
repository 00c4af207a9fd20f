"""A small data-parallel training whose data lies on a slow disk on one rank: see docs/examples/README.md."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, WIDTH = 120, 4, 128
SLOW_DISK_S, COMPUTE_S = 0.01, 0.05


class Shard(Dataset[torch.Tensor]):
    """Holds the samples of one rank."""

    def __init__(self, *, slow: bool) -> None:
        """`slow`: each sample takes as long as from a slow disk."""
        self.slow = slow

    def __len__(self) -> int:
        """Returns the number of samples."""
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        """Returns one sample."""
        return self.read(index)

    def read(self, index: int) -> torch.Tensor:
        """Returns a sample, after the time that the disk takes."""
        if self.slow:
            time.sleep(SLOW_DISK_S)
        return torch.full((64, WIDTH), float(index % 7))


class Network(torch.nn.Sequential):
    """Sleeps in place of most of its compute, so that the example is the same on any machine."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the output of the layers, after 50 ms."""
        time.sleep(COMPUTE_S)
        return super().forward(inputs)


def main() -> None:
    """Train for some steps; with `--slow-disk`, rank 1 reads from a slow disk."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = DistributedDataParallel(Network(*layers), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    shard = Shard(slow="--slow-disk" in sys.argv and dist.get_rank() == 1)
    for samples in DataLoader(shard, batch_size=BATCH):
        loss = model(samples.flatten(0, 1) / 10).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
