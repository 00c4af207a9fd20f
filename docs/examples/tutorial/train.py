"""A small data-parallel training with a mistake on one rank: see docs/tutorial.md."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 150


class Network(torch.nn.Sequential):
    """Sleeps instead of computing, so that two cores are enough for the tutorial."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layers, after 20 ms."""
        time.sleep(0.02)
        return super().forward(inputs)


def write_statistics(model: torch.nn.Module) -> None:
    """Somebody's statistics of the weights, written after every step."""
    end = time.monotonic() + 0.03
    while time.monotonic() < end:
        sum(float(weight.abs().mean()) for weight in model.parameters())


def main() -> None:
    """Train for some steps; `--fixed` leaves the statistics out."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    network = Network(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randn(STEPS * 8, 64), torch.randn(STEPS * 8, 1))
    for inputs, targets in DataLoader(samples, batch_size=8):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 1 and "--fixed" not in sys.argv:
            write_statistics(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
