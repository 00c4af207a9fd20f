"""A training loop that keeps many Python objects, for the gate: with the collector managed, and without.

    aorta gate --a "python benchmarks/gate_collector.py --managed" --b "python benchmarks/gate_collector.py" \
        --cpu-time --limit 2

The samples of the last 200 steps stay in memory. `--managed` switches automatic collections off and collects
young objects now and then, as torchtitan does.
"""

from __future__ import annotations

import collections
import gc
import sys

import torch

STEPS, KEPT, SAMPLES, EVERY = 300, 200, 1500, 1000


def main() -> None:
    managed = "--managed" in sys.argv[1:]
    if managed:
        gc.disable()
        gc.collect(1)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept: collections.deque[list[dict[str, object]]] = collections.deque(maxlen=KEPT)
    for step in range(STEPS):
        kept.append([{"id": sample, "tokens": [sample, step]} for sample in range(SAMPLES)])
        optimizer.zero_grad()
        model(torch.randn(256, 256)).square().mean().backward()
        optimizer.step()
        if managed and step % EVERY == EVERY - 1:
            gc.collect(1)


if __name__ == "__main__":
    main()
