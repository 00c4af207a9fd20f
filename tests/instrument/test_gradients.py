"""DDP's exchange of gradients, on one rank of gloo."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import library as torch_library
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from aorta.config.schema import CaptureConfig
from aorta.instrument import StepRecorder
from aorta.instrument.dispatch import _BELOW, DISPATCH
from aorta.instrument.gradients import GradientExchange, high_priority
from aorta.instrument.watching import Watching
from tests.support.recorders import forget_dispatch, watch_alone
from tests.support.step_records import read_records

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def recorder_of_two(folder: Path) -> StepRecorder:
    """As on one of two ranks: communication is not known to be none."""
    made = StepRecorder(folder, CPU, capture=CaptureConfig(warmup_steps=0))
    watch_alone(made)
    return made


def watching(recorder: StepRecorder) -> Watching:
    assert recorder._calls is not None
    return recorder._calls


def one_step(recorder: StepRecorder, call: Callable[..., Any], step: int = 0) -> None:
    with recorder.step(epoch=0, step=step) as opened:
        with recorder.forward():
            loss = call(torch.ones(4, 3)).sum()
        with recorder.backward():
            loss.backward()
        opened.result(samples=4, lr=0.1, loss=loss)


def test_a_compiled_model_with_buffers_sends_them_by_the_group(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with recorder_of_two(tmp_path) as recorder:
        model = DistributedDataParallel(module, process_group=recorder.ddp_group())
        compiled = torch.compile(model, backend="eager")
        for step in range(2):
            one_step(recorder, compiled, step)
    ranges = [record.profile.ranges for record in read_records(tmp_path, 0) if record.profile]
    assert [sum(one.stream == "allreduce" for one in found) for found in ranges] == [1, 1]


def test_a_closed_recorder_watches_nothing(tmp_path: Path) -> None:
    waits = dist.Work.wait, dist.ProcessGroup._end_coalescing, dist._broadcast_coalesced
    with recorder_of_two(tmp_path) as recorder:
        one_step(recorder, DistributedDataParallel(nn.Linear(3, 2)))
        assert DISPATCH.watched_by(watching(recorder))
        assert dist.Work.wait is not waits[0]
    assert not DISPATCH.watched_by(watching(recorder))
    assert (dist.Work.wait, dist.ProcessGroup._end_coalescing, dist._broadcast_coalesced) == waits
    DistributedDataParallel(nn.Linear(3, 2))(torch.ones(4, 3)).sum().backward()


def test_gradients_of_a_hook_are_timed(tmp_path: Path) -> None:
    """A communication hook of the program's own, in Python, whose futures the reducer waits for."""

    def reduced(state: object, bucket: Any) -> Any:
        del state
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    with recorder_of_two(tmp_path) as recorder:
        model = DistributedDataParallel(nn.Linear(3, 2))
        model.register_comm_hook(None, lambda state, bucket: reduced(state, bucket))  # noqa: PLW0108
        one_step(recorder, model)
    (record,) = read_records(tmp_path, 0)
    assert record.profile is not None
    ranges = [one for one in record.profile.ranges if one.stream == "allreduce"]
    assert [(one.tag, one.metadata and one.metadata["op"]) for one in ranges] == [("gradients", "all_reduce")]
    assert record.untimed_calls == {}


def test_a_kernel_of_the_programs_own_leaves_communication_unobserved(tmp_path: Path) -> None:
    def kernel(keys: Any, *args: Any) -> Any:
        return torch.ops.c10d.allreduce_.default.redispatch(keys & _BELOW, *args)

    forget_dispatch()
    library = torch_library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    try:
        with recorder_of_two(tmp_path) as recorder:
            one_step(recorder, DistributedDataParallel(nn.Linear(3, 2)))
    finally:
        library._destroy()
        forget_dispatch()
    (record,) = read_records(tmp_path, 0)
    assert (record.breakdown, record.untimed_calls) == (None, None)


def test_steps_timed_as_a_whole_exchange_gradients_without_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aorta.instrument.capture.DETAIL_STEPS", 2)
    asked: list[int] = []
    watched = Watching.noted

    def noted(self: Watching, *args: Any) -> Any:
        asked.append(step)
        return watched(self, *args)

    monkeypatch.setattr(Watching, "noted", noted)
    module, alone = nn.Linear(3, 2), nn.Linear(3, 2)
    alone.load_state_dict(module.state_dict())
    with StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=1, detail_interval=2)) as recorder:
        watch_alone(recorder)
        model = DistributedDataParallel(module, process_group=recorder.ddp_group())
        for step in range(7):
            one_step(recorder, model, step)
            alone(torch.ones(4, 3)).sum().backward()
            assert torch.equal(module.weight.grad, alone.weight.grad)
    assert sorted(set(asked)) == [0, 1, 2, 5, 6]  # steps 3 and 4 are a block that is timed as a whole
    records = read_records(tmp_path, 0)
    assert [record.detailed for record in records] == [step in asked for step in range(7)]


class UnderWay:
    """A collective of the host that is not done."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self.future


def test_a_collective_under_way_does_not_hold_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the group lets go of it, and would wait for its own end if the group went with it."""
    inner = UnderWay()
    recorder = recorder_of_two(tmp_path)
    with recorder.step(epoch=0, step=0) as opened:
        tape = recorder._collectives.tape()
        assert tape is not None
        monkeypatch.setattr(dist, "all_reduce", lambda *args, **named: inner)
        exchange = GradientExchange(recorder._collectives)
        future = exchange._reduce_async(torch.ones(1), tape, 0)
        holder = weakref.ref(exchange)
        opened.result(samples=1, lr=0.1)
    recorder.close()
    del exchange
    assert holder() is None
    inner.future.set_result([torch.ones(1)])
    assert future.done()


def test_the_hook_rounds_like_ddp_itself(tmp_path: Path) -> None:
    tensor = torch.arange(1, 100, dtype=torch.float32)
    expected = tensor * (1 / 3)  # what DDP's reducer does; 32 of the quotients differ in the last bit
    assert not torch.equal(expected, tensor / 3)
    with recorder_of_two(tmp_path) as recorder:
        exchange = GradientExchange(recorder._collectives)
        exchange._size = 3  # of one rank: the sum is its own
        bucket: Any = SimpleNamespace(buffer=lambda: tensor, is_last=lambda: True)
        assert torch.equal(exchange.hook(None, bucket).wait(), expected)


def test_a_failure_of_the_gpu_does_not_hide_the_programs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = recorder_of_two(tmp_path)

    def fail() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore")

    monkeypatch.setattr(recorder._pending, "last_words", fail)
    with pytest.raises(ValueError, match="the cause"), recorder:
        raise ValueError("the cause")
    assert caplog.messages == ["the last steps could not be read: CUDA error: device-side assert triggered"]


@pytest.mark.parametrize(("ranks", "made"), [([0, 1, 2, 3], True), ([0, 2], False)])
def test_a_priority_makes_no_group_that_ranks_outside_of_it_would_have_to_join(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ranks: list[int], made: bool
) -> None:
    class Nccl:
        Options = dict

    given: list[Any] = []
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: ranks)
    monkeypatch.setattr(dist, "new_group", lambda *args, **named: given.append((args, named)) or "new")
    group: Any = object()
    found: Any = high_priority(group)
    assert (found is group) is not made
    assert (found == "new") is made
    options = {"backend": "nccl", "pg_options": {"is_high_priority_stream": True}}
    assert given == ([((ranks,), options)] if made else [])
    assert ("their group keeps its own" in caplog.text) is not made
