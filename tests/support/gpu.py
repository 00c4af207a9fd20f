"""A GPU that counts what it is asked to do, and whose streams keep time."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from aorta.instrument import streams

DEVICE = torch.device("cuda", 0)


class Stream:
    """What was launched on it is done at `ns`."""

    device = DEVICE

    def __init__(self, gpu: CountedGpu) -> None:
        self.gpu = gpu
        self.ns = 0

    def wait_event(self, event: Event) -> None:
        """What is launched from now on waits for the event."""
        self.gpu.calls["wait"] += 1
        self.ns = max(self.ns, event.ns)

    def work(self, ns: int) -> None:
        """Launch something that takes so long."""
        self.ns += ns


class Event:
    """Passed when what its stream had been given before it was done."""

    def __init__(self, gpu: CountedGpu) -> None:
        self.gpu = gpu
        self.ns = 0

    def record(self, stream: Stream) -> None:
        """On a stream."""
        self.gpu.calls["record"] += 1
        self.ns = stream.ns

    def elapsed_time(self, end: Event) -> float:
        """Ms to another event."""
        self.gpu.calls["elapsed"] += 1
        return (end.ns - self.ns) / 1e6


class Future:
    """Whoever takes its value waits for the stream that was current when it came."""

    def __init__(self, gpu: CountedGpu) -> None:
        self.gpu = gpu
        self.ns: int | None = None
        self.tensor: torch.Tensor | None = None

    def set_result(self, tensor: torch.Tensor) -> None:
        """On the current stream."""
        self.gpu.calls["future"] += 1
        self.tensor, self.ns = tensor, self.gpu.current.ns


class CountedGpu:
    """Stands in for `torch.cuda`: `calls` counts record, elapsed, wait, set_stream and current_stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.compute = self.current = Stream(self)
        self.side: dict[str, Stream] = {}
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "set_stream", self._set)
        monkeypatch.setattr(torch.cuda, "current_stream", self._get)
        monkeypatch.setattr(streams, "_current", None)
        monkeypatch.setattr(streams, "runtime_elapsed", lambda: None)
        monkeypatch.setattr(streams.Streams, "of", lambda _, name: self.side.setdefault(name, Stream(self)))
        monkeypatch.setattr(torch.futures, "Future", lambda devices: Future(self))

    def _set(self, stream: Stream) -> None:
        self.calls["set_stream"] += 1
        self.current = stream

    def _get(self, device: torch.device) -> Stream:
        assert device == DEVICE
        self.calls["current_stream"] += 1
        return self.current

    def since(self, before: Counter[str]) -> dict[str, int]:
        """Calls since then."""
        return dict(self.calls - before)
