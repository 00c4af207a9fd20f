"""The process group that DDP gets, on one rank of gloo."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from aorta.config.schema import Capture
from aorta.instrument import StepRecorder
from aorta.instrument.dispatch import DISPATCH
from aorta.instrument.gradients import GradientExchange, WatchedGroup, high_priority
from aorta.instrument.tape import Tape
from tests.support.step_records import read_records

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def recorder_of_two(folder: Path) -> StepRecorder:
    """As on one of two ranks: communication is not known to be none."""
    made = StepRecorder(folder, CPU, capture=Capture(warmup_steps=0))
    made._observed = False
    return made


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


def test_each_backend_of_a_group_stays_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    world: Any = dist.new_group([0], backend="cpu:gloo,cuda:fake")
    with recorder_of_two(tmp_path) as recorder:
        group: Any = recorder.ddp_group(world)
        assert set(group._device_types) == set(world._device_types)
        assert group.bound_device_id == world.bound_device_id
        for device in world._device_types:
            assert group._get_backend(device) is world._get_backend(device)


def test_a_closed_recorder_lets_go_of_the_group(tmp_path: Path) -> None:
    with recorder_of_two(tmp_path) as recorder:
        group: Any = recorder.ddp_group()
        one_step(recorder, DistributedDataParallel(nn.Linear(3, 2), process_group=group))
        assert group in DISPATCH._watchers
    assert group not in DISPATCH._watchers
    model = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
    model(torch.ones(4, 3)).sum().backward()


def test_gradients_that_went_elsewhere_were_not_observed(tmp_path: Path) -> None:
    """A program's own hook: on the default group nobody sees it, on this group it is timed."""

    def reduced(group: Any, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer(), group=group or dist.group.WORLD, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    for seen in (False, True):
        folder = tmp_path / str(seen)
        with recorder_of_two(folder) as recorder:
            group = recorder.ddp_group()
            model = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
            model.register_comm_hook(group if seen else None, lambda state, bucket: reduced(state, bucket))  # noqa: PLW0108
            one_step(recorder, model)
        (record,) = read_records(folder, 0)
        assert (record.breakdown is not None) == seen


def test_steps_timed_as_a_whole_exchange_gradients_without_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aorta.instrument.capture.DETAIL_STEPS", 2)
    asked: list[int] = []
    watched = WatchedGroup.noted

    def noted(self: WatchedGroup, *args: Any) -> Any:
        asked.append(step)
        return watched(self, *args)

    monkeypatch.setattr(WatchedGroup, "noted", noted)
    module, alone = nn.Linear(3, 2), nn.Linear(3, 2)
    alone.load_state_dict(module.state_dict())
    with StepRecorder(tmp_path, CPU, capture=Capture(warmup_steps=1, detail_interval=2)) as recorder:
        recorder._observed = False
        model = DistributedDataParallel(module, process_group=recorder.ddp_group())
        for step in range(7):
            one_step(recorder, model, step)
            alone(torch.ones(4, 3)).sum().backward()
            assert torch.equal(module.weight.grad, alone.weight.grad)
    assert asked == [0, 1, 2, 5, 6]  # steps 3 and 4 are a block that is timed as a whole
    records = read_records(tmp_path, 0)
    assert [record.detailed for record in records] == [step in asked for step in range(7)]


def test_calls_of_the_program_on_this_group_are_counted_once(tmp_path: Path) -> None:
    with recorder_of_two(tmp_path) as recorder:
        group = recorder.ddp_group()
        assert dist.group.WORLD is not None
        assert group.group_name == dist.group.WORLD.group_name
        with recorder.intercept(), recorder.step(epoch=0, step=0) as opened:
            dist.all_reduce(torch.ones(1), group=group)
            opened.result(samples=1, lr=0.1)
    (record,) = read_records(tmp_path, 0)
    assert record.profile is not None
    assert [one.stream for one in record.profile.ranges] == ["allreduce"]


@contextmanager
def watched_group(folder: Path) -> Iterator[tuple[Tape, WatchedGroup]]:
    """Within a step that is timed part by part, and its tape."""
    with recorder_of_two(folder) as recorder, recorder.step(epoch=0, step=0) as opened:
        tape = recorder._collectives.tape()
        assert tape is not None
        assert dist.group.WORLD is not None
        watched = WatchedGroup(recorder._collectives, dist.group.WORLD)
        watched.watch(True)
        yield tape, watched
        watched.watch(False)
        opened.result(samples=1, lr=0.1)


def test_work_is_kept_until_it_was_waited_for(tmp_path: Path) -> None:
    """Two models on one group: the reducer of the first waits when the second has begun others."""
    with watched_group(tmp_path) as (_, watched):
        group: Any = watched.group
        works = [group.allreduce([torch.ones(1)]) for _ in range(3)]
        assert watched._waited_for == set(works)
        works[0].wait()
        works[2].get_future().wait()
        assert watched._waited_for == {works[1]}


class UnderWay:
    """A collective of the host that is not done."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self.future

    def wait(self, timeout: timedelta | None = None) -> None:
        raise RuntimeError(f"not after {timeout}")


def test_work_is_under_way_until_it_is_done(tmp_path: Path) -> None:
    """As the work of torch's own groups is, for whoever asks again and again, or only for so long."""
    with watched_group(tmp_path) as (tape, watched):
        inner, tensors = UnderWay(), [torch.ones(1)]
        work = watched._on_host(tape, 0, {}, inner)
        assert not work.is_completed()
        inner.future.set_result(tensors)
        assert work.is_completed()
        with pytest.raises(RuntimeError, match="not after 0:00:02"):
            work.wait(timedelta(seconds=2))
        assert work.result() is tensors
        group: Any = watched.group
        done = group.allreduce([torch.ones(1)])
        done.synchronize()
        assert done not in watched._waited_for


def test_a_collective_under_way_does_not_hold_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the group lets go of it, and would wait for its own end if the group went with it."""
    inner = UnderWay()
    recorder = recorder_of_two(tmp_path)
    with recorder.step(epoch=0, step=0) as opened:
        tape = recorder._collectives.tape()
        assert tape is not None
        assert dist.group.WORLD is not None
        watched = WatchedGroup(recorder._collectives, dist.group.WORLD)
        work = watched._on_host(tape, 0, {}, inner)
        monkeypatch.setattr(dist, "all_reduce", lambda *args, **named: inner)
        exchange = GradientExchange(recorder._collectives)
        future = exchange._reduce_async(torch.ones(1), tape, 0)
        holders = weakref.ref(watched), weakref.ref(exchange)
        opened.result(samples=1, lr=0.1)
    recorder.close()
    del watched, exchange
    assert [holder() for holder in holders] == [None, None]
    inner.future.set_result([torch.ones(1)])
    assert work.is_completed()
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
    assert ("their group keeps its own streams" in caplog.text) is not made
