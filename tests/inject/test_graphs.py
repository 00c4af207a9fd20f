"""Graphs that hold a whole step. CUDA itself is tried by `benchmarks/own_program_gpu/run.py`."""

from __future__ import annotations

from threading import get_ident

import pytest
import torch

from aorta.inject import graphs as module
from aorta.inject.graphs import Graphs
from aorta.inject.hooks import Hooks


class Seen:
    """Stands for the driver."""

    def __init__(self) -> None:
        self.hooks = Hooks(lambda name: None)
        self.thread: int | None = None
        self.told: list[object] = []

    def here(self) -> Seen:
        return self

    def begins(self, part: str) -> None:
        self.told.append(part)

    def worked(self) -> None:
        self.told.append("backward")

    def forward_ended(self) -> None:
        self.told.append("ended")

    def update_ended(self, optimizer: object) -> None:
        self.told.append(optimizer)


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> type:
    class Graph:
        def capture_begin(self) -> None: ...

        def capture_end(self) -> None: ...

        def replay(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    return Graph


def test_a_replay_ends_a_step_only_where_the_graph_holds_an_update(graph: type) -> None:
    seen = Seen()
    watched = Graphs(seen)  # type: ignore[arg-type]
    watched.watch()
    forward, whole = graph(), graph()
    forward.capture_end()
    watched.update_captured("adam")
    whole.capture_end()
    forward.replay()
    assert seen.told == []
    whole.replay()
    assert seen.told == ["forward", "backward", "ended", "adam"]
    assert (seen.thread, seen.hooks.seen) == (get_ident(), {"graph"})


def test_cuda_is_asked_once_a_capture_has_begun(graph: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPTURES", module.Captures())
    monkeypatch.setattr(module, "_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    Graphs(Seen()).watch()  # type: ignore[arg-type]
    assert (module.captured(), module.captured(surely=True)) == (False, True)
    graph().capture_begin()
    assert module.captured()


def test_nothing_is_captured_without_a_gpu() -> None:
    assert module.captured(surely=True) is torch.cuda.is_initialized()
