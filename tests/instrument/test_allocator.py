"""The allocator's counters of a step: differences of what it counts, peaks of what it holds."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from aorta.config.schema import CaptureConfig
from aorta.instrument import StepRecorder
from aorta.instrument.allocator import AllocatorCounts


class FakeAllocator:
    """The calls of `torch.cuda` that are used, and the numbers behind them."""

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {
            "allocated_bytes": {"all": {"peak": 0}},
            "reserved_bytes": {"all": {"peak": 0}},
            "num_alloc_retries": 5,
            "num_ooms": 1,
        }
        self.reads = 0

    def reset(self, device: torch.device) -> None:
        for name in ("allocated_bytes", "reserved_bytes"):
            self.stats[name]["all"]["peak"] = 0

    def read(self, device: torch.device) -> dict[str, Any]:
        self.reads += 1
        return copy.deepcopy(self.stats)

    def work(self, peak: int, reserved: int, retries: int = 0, ooms: int = 0) -> None:
        self.stats["allocated_bytes"]["all"]["peak"] = peak
        self.stats["reserved_bytes"]["all"]["peak"] = reserved
        self.stats["num_alloc_retries"] += retries
        self.stats["num_ooms"] += ooms


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    made = FakeAllocator()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", made.reset)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", made.read)
    return made


def test_calls_are_counted_by_step_and_peaks_begin_anew(fake: FakeAllocator) -> None:
    counts, found = AllocatorCounts(torch.device("cuda")), []
    for work in ((70, 90, 2, 0), (60, 80), (65, 95, 1, 1)):
        counts.start()
        fake.work(*work)
        memory = counts.read()
        assert memory is not None
        found.append((memory.peak_bytes, memory.reserved_bytes, memory.retries, memory.ooms))
    # What was counted before the first step, 5 and 1, belongs to none.
    assert found == [(70, 90, 2, 0), (60, 80, 0, 0), (65, 95, 1, 1)]
    # One reading a step, and one before the first.
    assert fake.reads == 4


def test_what_happens_between_steps_belongs_to_the_next(fake: FakeAllocator) -> None:
    counts = AllocatorCounts(torch.device("cuda"))
    counts.start()
    counts.read()
    fake.work(1, 1, retries=3)
    counts.start()
    memory = counts.read()
    assert memory is not None
    assert (memory.peak_bytes, memory.retries) == (0, 3)


def test_what_happens_in_a_step_that_is_not_counted_belongs_to_none(fake: FakeAllocator) -> None:
    counts = AllocatorCounts(torch.device("cuda"))
    counts.start()
    counts.read()
    counts.skip()
    fake.work(9, 9, retries=3)
    counts.start()
    fake.work(5, 6, retries=1)
    memory = counts.read()
    assert memory is not None
    assert (memory.peak_bytes, memory.retries) == (5, 1)


def test_a_cpu_has_no_allocator_to_read(fake: FakeAllocator) -> None:
    counts = AllocatorCounts(torch.device("cpu"))
    counts.start()
    assert counts.read() is None
    assert fake.reads == 0


@pytest.mark.parametrize(("fails", "retries"), [(True, 2), (False, 3 + 2)])
def test_what_a_step_that_failed_asked_for_is_not_the_next_ones(
    fake: FakeAllocator, tmp_path: Path, fails: bool, retries: int
) -> None:
    with StepRecorder(tmp_path, torch.device("cpu"), capture=CaptureConfig(warmup_steps=0)) as recorder:
        counts = recorder._allocator = AllocatorCounts(torch.device("cuda"))
        counts.start()
        if fails:

            def body() -> None:
                with recorder.step(epoch=0, step=0):
                    fake.work(1, 1, retries=3)
                    raise ValueError("out of memory")

            with pytest.raises(ValueError, match="out of memory"):
                body()
        else:
            fake.work(1, 1, retries=3)
        counts.start()
        fake.work(1, 1, retries=2)
        memory = counts.read()
        assert memory is not None
        assert memory.retries == retries
