"""The recorder around small loops in this process; `tests/workloads/trainer` tests it on more ranks."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from aorta.config.schema import CaptureConfig
from aorta.errors import RunError
from aorta.instrument import StepRecorder
from aorta.instrument.gradients import AllReduce
from aorta.instrument.wire import StepSummary
from tests.support.recorders import watch_alone
from tests.support.step_records import read_records

CPU = torch.device("cpu")
VARIABLES = (
    "RANK LOCAL_RANK WORLD_SIZE GROUP_RANK SLURM_JOB_ID AORTA_RUN_DIR AORTA_RUN_ID AORTA_JOB_ID AORTA_ATTEMPT"
)


@pytest.fixture(autouse=True)
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.split():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def one_step(recorder: StepRecorder, index: int = 0, model: nn.Module | None = None) -> None:
    model = model if model is not None else nn.Linear(4, 1)
    with recorder.step(epoch=0, step=index) as step:
        with recorder.data():
            batch = torch.ones(8, 4)
        batch = recorder.to_device({"x": batch})["x"]
        with recorder.forward():
            loss = model(batch).mean()
        with recorder.backward():
            loss.backward()
        with recorder.optimizer():
            pass
        step.result(samples=8, lr=0.5, loss=loss, grad_norm=2.0)


def test_steps_are_in_the_file_when_drained_and_when_closed(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=1)) as recorder:
        one_step(recorder, 0)
        recorder.drain()
        assert len(read_records(tmp_path)) == 1
        one_step(recorder, 1)
    first, second = read_records(tmp_path)
    assert (first.phase, second.phase) == ("warmup", "steady")
    assert (second.step, second.global_step, second.epoch) == (1, 1, 0)
    assert (first.rank, first.world_size, first.job_id, first.device) == (0, 1, "local", "cpu")
    assert (first.samples, first.lr, first.grad_norm) == (8, 0.5, 2.0)
    assert first.mono_end_ns <= second.mono_start_ns


def test_a_part_inside_itself_is_of_the_outer_one(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=0))
    with recorder, recorder.step(epoch=0, step=0) as step:
        with recorder.data():
            time.sleep(0.02)
            with recorder.data():
                pass
        with recorder.forward():
            time.sleep(0.02)
            with recorder.forward():
                pass
        step.result(samples=1, lr=0.1)
    (record,) = read_records(tmp_path)
    assert record.breakdown is not None
    assert min(record.breakdown.compute_ns, record.breakdown.data_wait_ns or 0) >= 20_000_000


def test_the_parts_of_a_written_step_sum_to_it(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU) as recorder:
        one_step(recorder)
    (record,) = read_records(tmp_path)
    parts = record.breakdown
    assert parts is not None
    total = parts.compute_ns + parts.exposed_comm_ns + parts.data_wait_ns + parts.host_ns
    assert total == record.mono_end_ns - record.mono_start_ns == record.wall_end_ns - record.wall_start_ns
    assert parts.exposed_copy_ns is None  # there is no device to copy to
    assert record.profile is not None
    assert [(item.stream, item.tag) for item in record.profile.ranges] == [
        ("host", "data"),
        ("compute", "forward"),
        ("compute", "backward"),
        ("compute", "optimizer"),
    ]
    assert record.profile.overlap.overlap_ratio is None  # one rank: no communication
    assert record.memory_peak_bytes is None
    assert record.device_uuid is None


def recorder_of_whole_steps(folder: Path) -> StepRecorder:
    """Its next step, the 31st, is the first that is timed as a whole."""
    recorder = StepRecorder(folder, CPU, capture=CaptureConfig(warmup_steps=0, detail_interval=2))
    for index in range(30):
        one_step(recorder, index)
    return recorder


def test_parts_of_a_step_that_is_timed_as_a_whole_may_be_inside_themselves_but_not_outside_of_it(
    tmp_path: Path,
) -> None:
    with recorder_of_whole_steps(tmp_path) as recorder:
        with recorder.step(epoch=0, step=30) as step:
            for part in (recorder.data, recorder.forward, recorder.backward, recorder.optimizer):
                with part(), part():
                    pass
            with recorder.data():
                time.sleep(0.02)
            step.result(samples=1, lr=0.1)
        for part in (recorder.data, recorder.forward, recorder.backward, recorder.optimizer):
            with pytest.raises(RunError, match="outside of a step"), part():
                pass
    last = read_records(tmp_path)[30]
    assert (last.detailed, last.data_wait_ms >= 20) == (False, True)
    clocks = last.wall_start_ns - last.mono_start_ns, time.time_ns() - time.monotonic_ns()
    assert clocks[0] == pytest.approx(clocks[1], abs=1e9)


def test_in_a_step_that_is_timed_as_a_whole_no_thread_waits_for_another_to_leave_a_part(
    tmp_path: Path,
) -> None:
    with recorder_of_whole_steps(tmp_path) as recorder:

        def again() -> None:
            with recorder.forward() as given:
                entered.append(given)

        entered: list[None] = []
        thread = threading.Thread(target=again, daemon=True)  # as autograd's, of a checkpoint
        with recorder.step(epoch=0, step=30) as step, recorder.backward():
            thread.start()
            thread.join(5)
            assert entered == [None]
            step.result(samples=1, lr=0.1)
        with pytest.raises(ZeroDivisionError), recorder.step(epoch=0, step=31), recorder.backward():
            raise ZeroDivisionError


def test_steps_timed_as_a_whole_have_all_but_their_parts(tmp_path: Path, group_of_one: None) -> None:
    seen: list[StepSummary] = []
    with StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=0, detail_interval=2)) as recorder:
        recorder.listen(seen.append)
        watch_alone(recorder)
        model = DistributedDataParallel(nn.Linear(4, 1), process_group=recorder.ddp_group())
        for index in range(62):
            one_step(recorder, index, model)
    records = read_records(tmp_path)
    assert [record.detailed for record in records] == [True] * 30 + [False] * 30 + [True] * 2
    whole, next_one = records[30], records[60]
    assert (whole.breakdown, whole.phase, whole.samples, whole.grad_norm) == (None, "steady", 8, 2.0)
    assert whole.loss is not None
    assert whole.mono_end_ns - whole.mono_start_ns >= 1e6 * whole.data_wait_ms > 0
    assert whole.profile is not None
    assert (whole.profile.ranges, whole.profile.overlap.overlap_ratio) == ([], None)
    assert next_one.breakdown is not None
    assert next_one.profile is not None
    # Calls are counted where they are noted: 30 steps of one bucket, and 2 broadcasts of what DDP found.
    assert [item.metadata["seq"] for item in next_one.profile.ranges if item.metadata] == [30 + 2 + 1]
    assert [summary.compute_ns is None for summary in seen] == [not record.detailed for record in records]


def test_a_step_that_fails_is_not_recorded(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path, CPU)
    with pytest.raises(ZeroDivisionError), recorder.step(epoch=0, step=0):
        raise ZeroDivisionError
    with pytest.raises(RunError, match="step 0 was closed without a result"), recorder.step(epoch=0, step=0):
        pass
    one_step(recorder)
    recorder.close()
    assert [record.global_step for record in read_records(tmp_path)] == [0]


def test_no_step_is_opened_inside_another(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU) as recorder:
        with pytest.raises(RunError, match="step 0 was opened twice"), recorder.step(epoch=0, step=0):
            one_step(recorder)
        one_step(recorder)
    assert [record.global_step for record in read_records(tmp_path)] == [0]


def test_a_closed_recorder_takes_no_step_and_may_be_closed_again(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU) as recorder:
        one_step(recorder)
        recorder.close()
        with pytest.raises(RunError, match="opened after the recorder was closed"):
            one_step(recorder, 1)
    assert [record.global_step for record in read_records(tmp_path)] == [0]


def test_parts_belong_to_a_step(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path, CPU)
    with pytest.raises(RunError, match="outside of a step"), recorder.forward():
        pass


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU) as recorder:
        for index, value in enumerate((math.nan, math.inf, 0.0)):
            with recorder.step(epoch=0, step=index) as step:
                step.result(samples=1, lr=0.0, loss=torch.tensor(value))
    assert [record.loss for record in read_records(tmp_path)] == [None, None, 0.0]


def test_a_sharded_norm_is_absent_and_a_whole_one_is_not(tmp_path: Path, group_of_one: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    norm = distribute_tensor(torch.tensor(0.0), mesh, [Replicate()])
    with StepRecorder(tmp_path, CPU) as recorder:
        for index, given in enumerate((norm, norm.full_tensor())):
            with recorder.step(epoch=0, step=index) as step:
                step.result(samples=1, lr=0.0, grad_norm=given)
    assert [record.grad_norm for record in read_records(tmp_path)] == [None, 0.0]


def test_runs_outside_a_job_never_mix(tmp_path: Path) -> None:
    for steps in (3, 1):
        with StepRecorder(tmp_path, CPU) as recorder:
            for index in range(steps):
                one_step(recorder, index)
    (aside,) = tmp_path.glob("earlier_*")
    assert (len(read_records(tmp_path)), len(read_records(aside))) == (1, 3)


def test_inside_a_job_the_run_directory_and_its_configuration_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run_7"
    run.mkdir()
    values = {"AORTA_RUN_DIR": str(run), "AORTA_RUN_ID": "r", "AORTA_JOB_ID": "7", "AORTA_ATTEMPT": "2"}
    values["AORTA_CAPTURE"] = '{"warmup_steps": 0, "gpu_metrics": true}'
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with StepRecorder(tmp_path / "unused", CPU) as recorder:
        one_step(recorder)
    (record,) = read_records(run)
    assert (record.run_id, record.job_id, record.attempt, record.phase) == ("r", "7", 2, "steady")
    assert not (tmp_path / "unused").exists()


def test_several_ranks_need_a_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="no process group"):
        StepRecorder(tmp_path, CPU)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(RunError, match="WORLD_SIZE is 'two'"):
        StepRecorder(tmp_path, CPU)


@pytest.mark.parametrize("way", ["group", "hook", "serial"])
def test_every_bucket_is_a_range_with_its_identity(tmp_path: Path, group_of_one: None, way: str) -> None:
    with StepRecorder(tmp_path, CPU) as recorder:
        watch_alone(recorder)
        layers = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
        group = recorder.ddp_group() if way == "group" else None
        model = DistributedDataParallel(layers, bucket_cap_mb=1e-6, process_group=group)
        if way != "group":
            model.register_comm_hook(None, recorder.ddp_hook(overlap=way == "hook"))
        for index in range(2):
            one_step(recorder, index, model)
    # DDP exchanges everything in one bucket in the first step, where it learns the order of the gradients.
    # Two broadcasts of that order come between them.
    for record, sizes, first in zip(read_records(tmp_path), [[192], [64] * 3], [1, 1 + 2 + 1], strict=True):
        assert record.profile is not None
        found = [item for item in record.profile.ranges if item.stream == "allreduce"]
        assert [item.metadata["bytes"] for item in found if item.metadata] == sizes
        numbers = sorted(item.metadata["seq"] for item in found if item.metadata)
        assert numbers == list(range(first, first + len(sizes)))
        assert {(item.metadata["op"], item.metadata["group"]) for item in found if item.metadata} == {
            ("all_reduce", dist.group.WORLD.group_name)
        }
        (wait,) = [item for item in record.profile.ranges if item.tag == "gradient_wait"]
        if way == "serial":
            assert record.profile.overlap.overlap_ratio == 0.0
            assert min(item.start_ms for item in found) >= wait.start_ms


def test_a_backend_that_has_waited_already_returns_no_work() -> None:
    done: list[str] = []

    class Work:
        def wait(self) -> None:
            done.append("wait")

    class Group:
        def __init__(self, work: Work | None) -> None:
            self._work = work

        def allreduce(self, tensors: list[torch.Tensor], options: object) -> Work | None:
            done.append(f"reduce {len(tensors)}")
            return self._work

    for work in (None, Work()):
        AllReduce(Group(work), on_gpu=False)(torch.ones(1))  # type: ignore[arg-type]
    assert done == ["reduce 1", "reduce 1", "wait"]


def test_a_listener_hears_of_every_record_in_order(tmp_path: Path) -> None:
    seen: list[StepSummary] = []
    with StepRecorder(tmp_path, CPU) as recorder:
        recorder.listen(seen.append)
        for index in range(3):
            one_step(recorder, index)
        recorder.drain()
        assert [summary.global_step for summary in seen] == [0, 1, 2]
    for summary, record in zip(seen, read_records(tmp_path), strict=True):
        assert record.breakdown is not None
        assert summary.compute_ns == record.breakdown.compute_ns
        assert summary.data_wait_ns == record.breakdown.data_wait_ns
        assert (summary.mono_start_ns, summary.loss) == (record.mono_start_ns, record.loss)


def test_time_between_steps_has_the_name_that_the_program_gives_it(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=0)) as recorder:
        one_step(recorder, 0)
        for _ in range(2):
            with recorder.between("logging"):
                time.sleep(0.01)
        with contextlib.suppress(ValueError), recorder.between("checkpoint"):
            time.sleep(0.01)
            raise ValueError
        one_step(recorder, 1)
        one_step(recorder, 2)
    first, second, third = read_records(tmp_path)
    assert (first.before_ms, third.before_ms) == (None, None)
    assert second.before_ms is not None
    assert sorted(second.before_ms) == ["checkpoint", "logging"]
    gap_ms = (second.mono_start_ns - first.mono_end_ns) / 1e6
    assert 20.0 <= second.before_ms["logging"] <= gap_ms - second.before_ms["checkpoint"]


def test_names_of_time_within_a_step_and_unknown_names_are_refused(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU) as recorder:
        with pytest.raises(RunError, match="no name: 'lunch'"), recorder.between("lunch"):  # type: ignore[arg-type]
            pass
        with recorder.step(epoch=0, step=0) as step:
            with pytest.raises(RunError, match="is inside a step"), recorder.between("logging"):
                pass
            step.result(samples=8, lr=None)


def test_steps_that_follow_each_other_share_a_mark_where_nobody_looks_at_their_parts(tmp_path: Path) -> None:
    capture = CaptureConfig(warmup_steps=1, detail_interval=2)
    recorder = StepRecorder(tmp_path, CPU, capture=capture, injected=True)
    marks, taken = recorder._clock.mark, []

    def mark(stream: None = None) -> object:
        taken.append(marks(stream))
        return taken[-1]

    recorder._clock.mark = mark  # type: ignore[method-assign, assignment]
    step, opened = recorder.opened(epoch=None, step=0), []
    for _ in range(65):
        opened.append(step)
        step.result(samples=1, lr=None)
        step = recorder.followed(step)
    recorder.skipped()
    recorder.close()
    # 66 steps are opened and 65 closed. Of 30 steps that are timed as a whole 29 share their end.
    assert len(taken) == 66 + 65 - 29
    assert [one.end_is_shared for one in opened] == [False] * 31 + [True] * 29 + [False] * 5
    assert all((one.end in list(one.marks())) is not one.end_is_shared for one in opened)
    records = read_records(tmp_path)
    ends = [(one.mono_start_ns, one.mono_end_ns) for one in records]
    assert all(end == start for (_, end), (start, _) in pairwise(ends[31:61]))
    assert [one.global_step for one in records] == list(range(65))
