"""Collectives where they can be timed.

Events around an asynchronous collective would bracket its enqueueing. Each collective is therefore called
synchronously in the context of a stream that waits for an event of its data's producer. An event of that
stream follows the collective, and the user of the result waits for it. The window of a collective is
therefore *ready to done*: from the moment its data are there until its result is. On the host, a blocking
collective is timed by the calling thread, and an asynchronous one until its future completes.

If no tape is open (outside of a step, or in a step timed as a whole), the same calls run on the same streams
without marks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.streams import Clock, Mark, Streams, current_stream
from aorta.instrument.tape import StreamGate, Tape


class CollectiveRunner:
    """Runs collectives and notes each one on the tape of the open step.

    Args:
        clock: where marks come from.
        device: where the model is.
        tape: gives the tape of the open step, or None outside of one.
        streams: the streams of this GPU; None makes a set of its own.
    """

    def __init__(
        self,
        clock: Clock,
        device: torch.device,
        tape: Callable[[], Tape | None],
        streams: Streams | None = None,
    ) -> None:
        self.clock = clock
        self.device = device
        self.tape = tape
        self.on_gpu = device.type == "cuda"
        self.streams = streams if streams is not None else Streams(device)
        self._count: Counter[str] = Counter()
        self._labels: dict[str, str] = {}
        self._local = threading.local()

    @property
    def inside(self) -> bool:
        """True if this thread is in a collective that is timed already."""
        return getattr(self._local, "inside", False)

    def own(self, call: Callable[[], Any]) -> Any:
        """Call a collective that is timed here: a watcher of calls lets it through."""
        before, self._local.inside = self.inside, True
        try:
            return call()
        finally:
            self._local.inside = before

    def describe(
        self, op: str, group: dist.ProcessGroup, size_bytes: int, peer: int | None = None
    ) -> dict[str, Any]:
        """The metadata of the next collective of `group`: ranks agree on `seq` because they call alike. Sends
        to one `peer` (a global rank) are counted apart, and so are receives from it.
        """
        name = group.group_name
        place = name if peer is None else f"{name}:{op}:{peer}"
        self._count[place] += 1
        found = {"op": op, "group": self._label(group, name), "seq": self._count[place], "bytes": size_bytes}
        return found if peer is None else {**found, "peer": peer}

    def _label(self, group: dist.ProcessGroup, name: str) -> str:
        """Returns the name of a group with what its maker called it, such as `mesh_tp:2`."""
        label = self._labels.get(name)
        if label is None:
            said = getattr(group, "group_desc", None)
            label = (
                name if said in (None, "", "undefined", "default_pg") else f"{said}:{name}".replace(" ", "_")
            )
            self._labels[name] = label
        return label

    def inline(
        self,
        stream: str,
        tag: str,
        metadata: dict[str, Any],
        call: Callable[[], Any],
    ) -> Mark | None:
        """Call a blocking collective on the current stream; `stream` is its name in the record.

        On the host the calling thread stands still meanwhile, and so does its compute.

        Args:
            stream: its name in the record.
            tag: what it is for.
            metadata: from `describe`.
            call: the collective.

        Returns:
            The mark after it; None where no tape is open.
        """
        tape = self.tape()
        if tape is None:
            self.own(call)
            return None
        on = current_stream(self.device) if self.on_gpu else None
        start = self.clock.mark(on)
        self.own(call)
        end = self.clock.mark(on)
        tape.add(stream, tag, start, end, metadata)
        if not self.on_gpu:
            tape.gates.append(StreamGate(stream, start, end))
        return end

    def aside(
        self,
        stream: str,
        tag: str,
        metadata: dict[str, Any],
        call: Callable[[], Any],
    ) -> Mark | None:
        """Call it on the stream of that name, after all that the current stream has queued. The caller's
        stream does not wait: wait for the mark returned before the result is used. On the host: see `inline`.
        """
        if not self.on_gpu:
            return self.inline(stream, tag, metadata, call)
        return self._beside(stream, tag, metadata, call)[2]

    def joined(
        self, stream: str, tag: str, metadata: dict[str, Any], call: Callable[[], Any], gate: bool = False
    ) -> Mark | None:
        """`aside`, and the current stream waits for the result; with `gate` that is the stream of compute,
        which stands still meanwhile. With no tape and no priority of the user's it may as well run on the
        current stream.
        """
        if not self.on_gpu or (self.tape() is None and self.streams.priority is None):
            return self.inline(stream, tag, metadata, call)
        current, ready, end = self._beside(stream, tag, metadata, call)
        current.wait_event(end)
        tape = self.tape()
        if gate and tape is not None:
            tape.gates.append(StreamGate(stream, ready, end))
        return end

    def _beside(
        self, stream: str, tag: str, metadata: dict[str, Any], call: Callable[[], Any]
    ) -> tuple[torch.cuda.Stream, torch.cuda.Event, torch.cuda.Event]:
        """`aside` on a GPU. Returns the current stream, the mark of what it had queued, and the one after the
        collective.
        """
        side, tape, current = self.streams.of(stream), self.tape(), current_stream(self.device)
        ready = self.clock.mark(current)
        assert not isinstance(ready, int)
        side.wait_event(ready)
        torch.cuda.set_stream(side)  # a fraction of what a context of it costs
        try:
            self.own(call)
            end = self.clock.mark(side)
        finally:
            torch.cuda.set_stream(current)
        if tape is not None:
            tape.add_queued(stream, tag, ready, end, metadata)
        assert not isinstance(end, int)
        return current, ready, end

    def begun(
        self, stream: str, tag: str, metadata: dict[str, Any], begin: Callable[[], Any]
    ) -> tuple[Any, torch.cuda.Event, torch.cuda.Event]:
        """Begin a collective that runs on a stream of its backend on a GPU. The stream of that name waits
        for the collective, and the current stream continues. Only with an open tape.

        Returns:
            What `begin` returned, the mark of what the current stream had queued, and the one after the
            collective.
        """
        side, tape, current = self.streams.of(stream), self.tape(), current_stream(self.device)
        assert tape is not None
        ready = self.clock.mark(current)
        work = begin()
        torch.cuda.set_stream(side)
        try:
            work.wait()
            end = self.clock.mark(side)
        finally:
            torch.cuda.set_stream(current)
        tape.add_queued(stream, tag, ready, end, metadata)
        assert not isinstance(ready, int)
        assert not isinstance(end, int)
        return work, ready, end

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, tag: str) -> None:
        """Sum `tensor` over `group` in place; the current stream waits for it."""
        if self.tape() is None and self.streams.priority is None:
            dist.all_reduce(tensor, group=group)
            return
        metadata = self.describe("all_reduce", group, tensor.numel() * tensor.element_size())
        self.joined("allreduce", tag, metadata, lambda: dist.all_reduce(tensor, group=group), gate=True)


def blocking(options: Any) -> Any:
    """Options of a collective whose result the current stream waits for, in the call or in `finished`."""
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    return options


def finished(work: Any) -> None:
    """Wait for a collective, where the backend has not made the current stream wait already."""
    if work is not None:
        work.wait()
