"""The recorder on a real GPU, alone in its process group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_record import StepRecord
from aorta.config.schema import CaptureConfig
from aorta.instrument import StepRecorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[torch.device]:
    chosen = torch.device("cuda", 0)
    torch.cuda.set_device(chosen)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=chosen)
    yield chosen
    dist.destroy_process_group()


def build(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).to(device)


def train(model: nn.Module, recorder: StepRecorder, device: torch.device, steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for index in range(steps):
        with recorder.step(epoch=0, step=index) as step:
            with recorder.data():
                host = torch.randn(512, 1024, pin_memory=True)
            batch = recorder.to_device({"x": host})["x"]
            with recorder.forward():
                loss = model(batch).square().mean()
            with recorder.backward():
                loss.backward()
            with recorder.optimizer():
                optimizer.step()
                optimizer.zero_grad()
            step.result(samples=512, lr=0.01, loss=loss)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("overlap", [True, False])
def test_records_and_numerics(tmp_path: Path, device: torch.device, overlap: bool) -> None:
    with StepRecorder(tmp_path / "plain", device) as recorder:
        expected = train(build(device), recorder, device, 20)
    with StepRecorder(tmp_path / "ddp", device) as recorder:
        model = DistributedDataParallel(build(device), device_ids=[0], bucket_cap_mb=4)
        model.register_comm_hook(None, recorder.ddp_hook(overlap=overlap))
        weights = train(model, recorder, device, 20)
    for got, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(got, wanted)
    records = read(tmp_path / "ddp")
    assert [record.global_step for record in records] == list(range(20))
    for record in records:
        check(record, overlap)
    for before, after in pairwise(records):
        # One GPU clock: a step starts where the stream has done with the one before.
        assert after.mono_start_ns >= before.mono_end_ns - 100_000


def test_a_group_exchanges_like_ddp_and_whole_steps_have_their_times_and_losses(
    tmp_path: Path, device: torch.device
) -> None:
    capture = CaptureConfig(warmup_steps=0, detail_interval=2)
    with StepRecorder(tmp_path / "plain", device) as recorder:
        expected = train(build(device), recorder, device, 40)
    with StepRecorder(tmp_path / "ddp", device, capture=capture) as recorder:
        group = recorder.ddp_group()
        model = DistributedDataParallel(build(device), device_ids=[0], bucket_cap_mb=4, process_group=group)
        weights = train(model, recorder, device, 40)
    for got, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(got, wanted)
    plain, records = read(tmp_path / "plain"), read(tmp_path / "ddp")
    assert [record.detailed for record in records] == [True] * 30 + [False] * 10
    for record in records[:30]:
        check(record, overlap=True)
    for before, after in pairwise(records):
        assert after.mono_start_ns >= before.mono_end_ns - 100_000
    for one, other in zip(records, plain, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
    for record in records[30:]:
        assert record.mono_end_ns > record.mono_start_ns
        assert (record.breakdown, record.memory_peak_bytes, record.phase) == (None, None, "steady")
        assert record.profile is not None
        assert record.profile.ranges == []


def read(folder: Path) -> list[StepRecord]:
    lines = RunDir(folder).records(0).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=StepRecord) for line in lines]


def check(record: StepRecord, overlap: bool) -> None:
    parts = record.breakdown
    assert parts is not None
    assert parts.exposed_copy_ns is not None
    total = (
        parts.compute_ns + parts.exposed_comm_ns + parts.exposed_copy_ns + parts.data_wait_ns + parts.host_ns
    )
    assert total == record.mono_end_ns - record.mono_start_ns
    assert record.timing == "event_window"
    assert record.loss is not None
    assert record.memory_peak_bytes is not None
    assert 0 < record.memory_peak_bytes < (record.memory_total_bytes or 0)
    assert record.memory_peak_bytes <= (record.memory_reserved_bytes or 0)
    assert (record.alloc_retries, record.alloc_ooms) == (0, 0)
    assert (record.device_uuid or "").startswith(("GPU-", "MIG-"))
    assert record.profile is not None
    assert all(item.end_ms >= item.start_ms for item in record.profile.ranges)
    inside = [item for item in record.profile.ranges if item.tag != "data"]
    assert min(item.start_ms for item in inside) >= 0
    assert max(item.end_ms for item in inside) <= record.profile.total_ms
    assert parts.comm_ns > 0
    if not overlap:
        assert record.profile.overlap.overlap_ratio == 0.0
