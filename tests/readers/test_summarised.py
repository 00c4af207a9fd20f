"""Traces that one process each reads and summarises give what reading them together gives."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aorta.metrics.trace_summary import REDUCER, summarise
from aorta.readers import copies, parallel
from aorta.readers.parallel import by_copies
from aorta.readers.summarised import read_summaries
from aorta.readers.traces import NoTraceError, read_traces
from tests.support.kineto import event, kernel, write


def trace(path: Path, rank: int | None, *, at: int = 0) -> Path:
    events = [
        made
        for number in (1, 2, 3)
        for made in (
            event("user_annotation", f"ProfilerStep#{number}", at + 100 * number, 90),
            kernel("gemm", at + 100 * number + 10, 50),
        )
    ]
    header = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return write(path, events, **header)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (None, None), (0, 0), (0, None)])
def test_summaries_are_those_of_the_traces_read_together(
    tmp_path: Path, ranks: tuple[int | None, int | None]
) -> None:
    files = [trace(tmp_path / f"{'ab'[place]}.json", rank) for place, rank in enumerate(ranks)]
    together, found = _told(lambda: read_traces(files)), _told(lambda: read_summaries(files, REDUCER))
    if isinstance(together, NoTraceError):
        assert isinstance(found, NoTraceError)
        assert (found.message, found.problems) == (together.message, together.problems)
        return
    assert found.summaries == tuple(summarise(item) for item in together.traces)
    assert (found.problems, found.files) == (together.problems, together.files)


@pytest.mark.parametrize("least", [0, 10**9], ids=["shared out", "alone"])
def test_processes_share_the_work_on_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    path = trace(tmp_path / "rank0.json", 0)
    monkeypatch.setattr("aorta.readers.summarised._WORTH_A_COPY", least)
    (found,) = read_summaries([path], REDUCER).summaries
    assert found == summarise(read_traces([path]).traces[0])


def _told(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except NoTraceError as error:
        return error


def test_a_file_that_is_no_trace_costs_that_file(tmp_path: Path) -> None:
    good = [trace(tmp_path / f"rank{rank}.json", rank) for rank in (0, 1)]
    bad = tmp_path / "rank2.json"
    bad.write_text('{"traceEvents": ')
    found = read_summaries([*good, bad], REDUCER)
    assert [item.rank for item in found.summaries] == [0, 1]
    assert found.problems == read_traces([*good, bad]).problems


def test_sessions_are_told_apart_without_the_events(tmp_path: Path) -> None:
    late = 10**9
    first = [trace(tmp_path / f"old_rank{rank}.json", rank) for rank in (0, 1)]
    second = [trace(tmp_path / f"new_rank{rank}.json", rank, at=late) for rank in (0, 1)]
    found = read_summaries([*first, *second], REDUCER)
    assert found.problems == read_traces([*first, *second]).problems
    assert [Path(item.source) for item in found.summaries] == second


@pytest.mark.parametrize("count", [2, 3, 1025, 2500])
def test_each_item_is_taken_once_and_comes_back_in_its_place(count: int) -> None:
    offset = 7
    found = by_copies(lambda number: number + offset, range(count), workers=3)
    assert found == [number + offset for number in range(count)]


def test_this_process_works_meanwhile() -> None:
    done: list[int] = []
    assert by_copies(abs, [-1, -2], meanwhile=lambda: done.append(os.getpid())) == [1, 2]
    assert done == [os.getpid()]


def test_a_result_that_cannot_be_sent_is_no_killed_copy() -> None:
    parent = os.getpid()
    taken, took = os.pipe()

    def local(number: int) -> object:
        if os.getpid() == parent:
            return number
        os.write(took, b"x")
        return lambda: number

    with pytest.raises(RuntimeError, match="cannot be sent"):
        by_copies(local, range(3), workers=2, meanwhile=lambda: os.read(taken, 1))


def test_a_copy_that_is_killed_while_it_sends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(sink: int, make: Callable[[], object]) -> None:
        make()
        os.write(sink, pickle.dumps({1: "a result"})[:-3])

    monkeypatch.setattr(copies, "_send", cut)
    with pytest.raises(ChildProcessError, match="killed"):
        by_copies(str, range(3), workers=2)


def test_a_copy_that_is_killed_is_an_error() -> None:
    parent = os.getpid()
    taken, took = os.pipe()

    def killed(number: int) -> int:
        if os.getpid() != parent:
            os.write(took, b"x")
            os.kill(os.getpid(), 9)
        return number

    def wait() -> None:
        os.read(taken, 1)

    # This process takes its first item when the copy has taken one.
    with pytest.raises(ChildProcessError, match="killed"):
        by_copies(killed, range(3), workers=2, meanwhile=wait)
