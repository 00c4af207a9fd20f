"""A few seconds of training beat forecasts that need no model, on readings that were not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aorta.workloads.dcrnn.data import Samples
from aorta.workloads.dcrnn.metrics import error_sums, errors
from aorta.workloads.dcrnn.traffic import PER_DAY
from aorta.workloads.dcrnn.workload import DcrnnWorkload
from aorta.workloads.trainer.data import Batches
from aorta.workloads.trainer.world import World
from tests.support.baselines import HistoricalAverage, last_value
from tests.workloads.dcrnn.small import small

STEPS = 120
SETTINGS = (
    f"training.batch_size=32 dcrnn.num_nodes=8 dcrnn.num_steps={14 * PER_DAY} dcrnn.seq_len=3"
    " dcrnn.pred_len=6 dcrnn.hidden_dim=16 dcrnn.num_layers=1 dcrnn.dropout=0"
    f" dcrnn.sampling_decay={STEPS / 8}"
).split()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_it_learns(tmp_path: Path) -> None:
    config = small(tmp_path, *SETTINGS)
    workload = DcrnnWorkload(config)
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    model = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = Batches(workload.dataset(), config, World(0, 0, 1, 0, cpu, None))
    losses = []
    for epoch in range(2):
        for batch in batches.epoch(epoch):
            if len(losses) < STEPS:
                loss = workload.loss(model(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    assert len(losses) == STEPS
    test, train = workload.data.test, workload.data.train
    assert isinstance(train, Samples)
    whole = {name: torch.stack([test[i][name] for i in range(len(test))]) for name in test[0]}
    with torch.no_grad():
        forecasts = {
            "model": model.eval()(whole),
            "last": last_value(whole["history"], 6, workload.data.mean),
            "average": HistoricalAverage(train, PER_DAY).forecast(whole["history"], 6),
        }
    found = {
        name: errors(error_sums(forecast, whole["target"]).sum(dim=(0, 1)))
        for name, forecast in forecasts.items()
    }
    for baseline in ("last", "average"):
        for error in ("mae", "rmse", "mape"):
            assert found["model"][error] < found[baseline][error], found
