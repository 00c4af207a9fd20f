"""Real programs with the hooks: what their records say, and that they compute what they compute without."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.injected import Ended, run_program

DDP = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        if rank == 1: time.sleep(0.005)
        return torch.full((4,), float(index)), torch.ones(1)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
for step, (x, y) in enumerate(DataLoader(Data(), batch_size=4)):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item().hex())
print([p.sum().item().hex() for p in model.parameters()])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run_program(DDP, tmp_path_factory.mktemp("ddp"), ranks=2)


def test_losses_and_weights_are_those_of_the_plain_program(ddp: Ended, tmp_path: Path) -> None:
    plain = run_program(DDP, tmp_path, ranks=2, hooks=False)
    assert (ddp.codes, plain.codes) == ([0, 0], [0, 0]), ddp.err
    assert ddp.out == plain.out


def test_each_rank_leaves_a_record_per_step_from_the_second_on(ddp: Ended) -> None:
    for rank in (0, 1):
        records = ddp.records(rank)
        assert [record.global_step for record in records] == list(range(14))  # 16 updates end 14 steps
        assert {(record.samples, record.lr, record.world_size) for record in records} == {(4, 0.25, 2)}
        assert [record.phase for record in records] == ["warmup"] * 2 + ["steady"] * 12
        losses = [line.split()[1] for line in ddp.out[rank].splitlines()[2:16]]
        assert [float(record.loss or 0).hex() for record in records] == losses


def test_the_steps_of_a_rank_follow_each_other(ddp: Ended) -> None:
    assert all(before.mono_end_ns <= after.mono_start_ns for before, after in pairwise(ddp.records()))


def test_every_part_of_a_step_is_seen(ddp: Ended) -> None:
    record = ddp.records()[-1]
    assert record.profile is not None
    seen = {(piece.stream, piece.tag) for piece in record.profile.ranges}
    parts = {("host", "data"), ("compute", "forward"), ("compute", "backward"), ("compute", "optimizer")}
    assert seen >= parts | {("allreduce", "gradients")}
    assert record.grad_norm is not None


def test_a_slow_loader_is_waiting_for_data(ddp: Ended) -> None:
    slow, quick = (ddp.records(rank) for rank in (1, 0))
    assert min(record.data_wait_ms for record in slow) >= 4 * 5  # 4 samples of 5 ms
    assert all(record.breakdown for record in quick)


OWN = """
import torch
from aorta.instrument import StepRecorder

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
with StepRecorder("unused", torch.device("cpu")) as recorder:
    for index in range(4):
        with recorder.step(epoch=7, step=index) as step:
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            step.result(samples=3, lr=0.5)
"""


def test_a_program_that_records_itself_is_left_alone(tmp_path: Path) -> None:
    ended = run_program(OWN, tmp_path)
    assert ended.codes == [0], ended.err
    assert [record.epoch for record in ended.records()] == [7] * 4
    assert ended.status().note == "the program uses its own StepRecorder"


PLACES = """
import time
import torch

def preprocess():
    time.sleep(0.1)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for index in range(14):
    preprocess()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
"""


def test_the_function_that_takes_the_time_is_found(tmp_path: Path) -> None:
    ended = run_program(PLACES, tmp_path)
    status = ended.status()
    place = status.places[0]
    assert (place.function, place.part, place.package) == ("preprocess", "other", False)
    assert place.file.endswith("program.py")
    assert place.line == PLACES.splitlines().index("    time.sleep(0.1)") + 1
    assert (status.roots, status.steps) == (["Linear"], 10)  # 14 updates, 12 steps, 2 of warm-up
    assert status.seen == ["backward", "forward", "optimizer"]
    assert ended.records()[-1].samples == 3  # no loader: the batch that the model saw


COMPILED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)

@torch.compile(backend="eager")
def update():
    optimizer.step()
    schedule.step()

for _ in range(3):
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2):
        model(x).sum().backward()
        update()
"""


def test_a_compiled_update_is_seen_and_no_epoch_is_guessed(tmp_path: Path) -> None:
    ended = run_program(COMPILED, tmp_path)
    assert ended.codes == [0], ended.err
    records = ended.records()
    assert len(records) == 10  # 12 updates, two of which are learned from
    tags = [{piece.tag for piece in record.profile.ranges} for record in records if record.profile]
    assert [found - {"gc"} for found in tags] == [{"data", "forward", "backward", "optimizer"}] * 10
    # Each pass makes a loader of its own: of the later ones nobody says which pass they are.
    assert [record.epoch for record in records] == [0] * 2 + [None] * 8


IN_PLACE = """
import torch

model = torch.nn.Linear(2, 1)
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(6):
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
"""


def test_the_forward_pass_of_a_model_that_is_compiled_in_place_is_seen(tmp_path: Path) -> None:
    ended = run_program(IN_PLACE, tmp_path)
    assert ended.codes == [0], ended.err
    tags = [{piece.tag for piece in record.profile.ranges} for record in ended.records() if record.profile]
    assert tags == [{"forward", "backward", "optimizer"}] * 4


EPOCHS = """
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
rows = TensorDataset(torch.ones(6, 2))

def train(batches):
    for x in batches:
        model(x[0]).sum().backward()
        optimizer.step()

loader = DataLoader(rows, batch_size=2)
for _ in range(2):
    train(loader)
train([torch.ones(1, 3, 2)])
sampler = DistributedSampler(rows, num_replicas=1, rank=0)
for epoch in (7, 8):
    sampler.set_epoch(epoch)
    train(DataLoader(rows, batch_size=3, sampler=sampler))
"""


def test_the_epoch_is_the_pass_over_the_loader_or_what_the_sampler_is_told(tmp_path: Path) -> None:
    ended = run_program(EPOCHS, tmp_path)
    assert ended.codes == [0], ended.err
    assert [(record.epoch, record.step) for record in ended.records()] == [
        *((0, 0), (1, 0), (1, 1), (1, 2), (1, 3)),
        *((7, 0), (7, 1), (8, 0), (8, 1)),
    ]


LATER = """
import os
import torch

for name in [name for name in os.environ if name.startswith("AORTA_")]:
    del os.environ[name]

class Other(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(2, 1)
    def forward(self, x):
        return self.inside(x)

def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

train(torch.nn.Linear(2, 1), 4)
train(torch.nn.Linear(2, 1), 4)
train(Other(), 6)
print([name for name in os.environ if name.startswith("AORTA_")])
"""


def test_models_that_are_made_later_are_seen_in_a_program_that_removes_the_variables(tmp_path: Path) -> None:
    """An optimizer that is new ends its first step with its second update: 4 + 4 + 6 updates end 2 + 3 + 5.

    Both passes of such a step count, 2 x 3 samples. The third model is found in its first call.
    """
    ended = run_program(LATER, tmp_path)
    assert (ended.codes, ended.out) == ([0], ["[]\n"]), ended.err
    tags = [{piece.tag for piece in record.profile.ranges} for record in ended.records() if record.profile]
    assert ["forward" in found for found in tags] == [True] * 10
    assert [record.samples for record in ended.records()] == [3] * 2 + [6, 3, 3] + [3, 3, 3, 3, 3]
    assert ended.status().roots == ["Other"]


WHOLE = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))
loader = DataLoader(TensorDataset(torch.ones(160, 2)), batch_size=4)
for epoch in range(4):
    for number, (x,) in enumerate(loader):
        model(x).sum().backward()
        if epoch == 1 and number == 10:
            time.sleep(0.3)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        model(x)
"""


def test_steps_that_are_timed_as_a_whole_say_the_same_when_they_are_handed_over_together(
    tmp_path: Path,
) -> None:
    """4 epochs of 40 updates, of which the first two are learned from. Blocks of 30 steps alternate."""
    capture = {"AORTA_CAPTURE": '{"warmup_steps": 2, "detail_interval": 2}'}
    ended = run_program(WHOLE, tmp_path, variables=capture)
    assert ended.codes == [0], ended.err
    records, updates = ended.records(), range(2, 160)
    assert [record.global_step for record in records] == list(range(158))
    assert [record.samples for record in records] == [4] * 158
    assert [record.epoch for record in records] == [update // 40 for update in updates]
    assert [record.step for record in records[38:]] == [update % 40 for update in updates[38:]]
    assert [record.lr for record in records] == [1 / (1 + update) for update in updates]
    whole = [record for record in records if record.breakdown is None]
    assert [record.global_step for record in whole] == [*range(32, 62), *range(92, 122), *range(152, 158)]
    assert [record.global_step for record in records if record.phase == "validation"] == [38, 78, 118]
    spans = [(record.mono_start_ns, record.mono_end_ns) for record in records]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    slept = [record.global_step for record in whole if record.mono_end_ns - record.mono_start_ns > 3e8]
    assert slept == [40 + 10 - 2]
    assert all(record.loss is not None for record in records if record.breakdown is not None)
    assert any(record.loss is None for record in whole)
    status = ended.status()
    assert (status.steps, status.hooks_off, status.ended) == (158 - 2 - 3, {}, True)


ELSEWHERE = """
import threading
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(8):
    loss = model(torch.ones(3, 2)).sum()
    helper = threading.Thread(target=loss.backward)
    helper.start()
    helper.join()
    optimizer.step()
"""


def test_the_thread_that_updates_is_recorded_where_another_runs_the_backward_pass(tmp_path: Path) -> None:
    ended = run_program(ELSEWHERE, tmp_path)
    assert ended.codes == [0], ended.err
    assert [record.samples for record in ended.records()] == [3] * 6
    status = ended.status()
    assert (status.seen, status.note) == (["forward", "optimizer"], None)


GRADIENTS = """
import torch

weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.5)
for _ in range(6):
    loss = (weights * torch.ones(3, 2)).sum()
    (weights.grad,) = torch.autograd.grad(loss, [weights])
    optimizer.step()
print(weights.tolist())
"""


def test_gradients_from_autograd_grad_are_a_backward_pass(tmp_path: Path) -> None:
    ended = run_program(GRADIENTS, tmp_path)
    assert (ended.codes, ended.out) == ([0], ["[-8.0, -8.0]\n"]), ended.err  # 1 - 6 x 0.5 x 3
    records = ended.records()
    tags = [{piece.tag for piece in record.profile.ranges} for record in records if record.profile]
    assert tags == [{"backward", "optimizer"}] * 4
    assert [record.loss for record in records] == [-12.0, -21.0, -30.0, -39.0]  # 6 - 9 per step
    assert ended.status().seen == ["backward", "optimizer"]


NAMED = """
import torch

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
learn = torch.compile(lambda *, self, _: self * _, backend="eager", disable=True)
for _ in range(6):
    x = torch.ones(3, 2, requires_grad=True)
    output = model(input=x).sum()
    (slope,) = torch.autograd.grad(outputs=output, inputs=x, create_graph=True)
    loss = learn(self=output, _=1.0) + slope.sum() * 0.0
    torch.autograd.backward(tensors=scaler.scale(outputs=loss))
    scaler.step(optimizer=optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_calls_by_keyword_are_seen_too(tmp_path: Path) -> None:
    ended = run_program(NAMED, tmp_path)
    assert (ended.codes, ended.status().hooks_off) == ([0], {}), ended.err
    assert [record.loss for record in ended.records()] == [-12.0, -21.0, -30.0, -39.0]  # 6 - 9 per step
    assert ended.status().seen == ["backward", "forward", "optimizer", "scaler"]
