"""The calls of `torch.distributed` of a program, put on the tape of the open step.

On a GPU a call lasts from the moment its data are ready until its result is, taken by a stream that waits for
it. On the host it lasts until its future completes. A send or a receive of gloo has no future: it ends where
the program's wait for it returns. While a thread stands still in `Work.wait`, it computes nothing.

A call whose end is not known is counted but not timed.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.collectives import CollectiveRunner
from aorta.instrument.dispatch import DISPATCH, Called, storage_of
from aorta.instrument.streams import CudaClock, HostClock, Mark, current_stream
from aorta.instrument.tape import StreamGate, Tape
from aorta.instrument.waits import WAITS, uncompiled

GRADIENTS, PROGRAM = "gradients", "program"
"""Tags: DDP's exchange of gradients, and every other call."""

_ENGINE = getattr(torch.autograd.graph, "_engine_run_backward", None)


@dataclass(slots=True, eq=False)
class Begun:
    """A call that was begun. It holds neither the work nor its tensors, which may be large."""

    tape: Tape
    op: str
    stream: str
    tag: str
    metadata: dict[str, Any]
    start: Mark
    work: weakref.ref[Any]
    storages: frozenset[int]
    """Addresses of what it was given: functional collectives are waited for by their result."""
    noted: torch.futures.Future[None] | None = None
    """On the host: done when the end was noted."""
    end: Mark | None = None
    """On a GPU: the end, if a stream of ours took it."""

    @property
    def timed(self) -> bool:
        """Returns True if the end is known without the program's wait."""
        return self.noted is not None or self.end is not None


class Watching:
    """Notes every call of the program except calls that are timed elsewhere.

    Args:
        collectives: gives the tape and the clock.
        compute: gives the stream of the model's compute, on a GPU.
        alone: note calls of groups of one rank, too.
    """

    def __init__(
        self,
        collectives: CollectiveRunner,
        compute: Callable[[], torch.cuda.Stream | None],
        *,
        alone: bool = False,
    ) -> None:
        self._shared = collectives
        self._compute = compute
        self._alone = alone
        self.before: Callable[[str], None] | None = None
        """Called with the stream ahead of each call."""
        self._open: dict[int, Begun] = {}
        """Calls that have begun and not ended, by identity of their work."""
        self._newest: deque[Any] = deque(maxlen=16)
        """Works on their way to their callers: another object would be made for one that is gone."""
        self._reducing: Tape | None = None
        """The step in whose backward pass the reducer is."""
        self._batch: dict[int, list[tuple[Called, Mark]]] = {}
        """Calls that wait for the end of their batch, by thread."""

    def watch(self, on: bool) -> None:
        """Watch from now on, or no longer. Between steps."""
        if not on and not DISPATCH.watched_by(self):
            return
        DISPATCH.watch(self if on else None)
        WAITS.watch(self if on else None)
        if not on:
            self._open.clear()
            self._newest.clear()
            self._batch.clear()

    # --- calls ---------------------------------------------------------------------------------------------

    def noted(self, call: Called, begin: Callable[[], Any]) -> None:
        """Begin a call and put it on the tape."""
        shared = self._shared
        tape = shared.tape()
        if tape is None or shared.inside or (call.group.size() == 1 and not self._alone):
            begin()
            return
        if self.before is not None:
            self.before(call.stream)
        ready = shared.clock.mark(self._current())
        batch = self._batch.get(threading.get_ident())
        if batch is not None:
            batch.append((call, ready))
            begin()
            return
        tag = GRADIENTS if _reducing(sys._getframe(1)) else PROGRAM
        if tag == GRADIENTS:
            if self._reducing is not tape:
                self._reducing = tape
                self._see_the_end_of_backward(tape)
            tape.gradients_ready = ready
        self._begun(tape, [(call, ready)], tag, begin())

    def _see_the_end_of_backward(self, tape: Tape) -> None:
        """The reducer waits for its buckets when backward has computed: in a callback that it queues behind
        its last bucket, so behind ours. The next of ours comes after that.
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback

        def computed() -> None:
            before = self._shared.clock.mark(self._current())
            queue(lambda: self._reduced(tape, before))

        queue(computed)

    def _reduced(self, tape: Tape, before: Mark) -> None:
        """The reducer has waited for its buckets since `before`."""
        self._reducing = None
        on, ends = self._current(), {}
        for one in [one for one in self._open.values() if one.tape is tape and one.tag == GRADIENTS]:
            self._forget(one)
            if one.noted is not None:
                one.noted.wait()
            ends[one.stream] = one.end
        after = self._shared.clock.mark(on)
        if on is None or on is self._compute():
            for stream, end in ends.items():
                tape.gates.append(StreamGate(stream, before, after if end is None else end))

    def batched(self, begin: Callable[[], None]) -> None:
        """Calls from here on are launched together, in `launched`."""
        begin()
        self._batch[threading.get_ident()] = []

    def launched(self, end: Callable[[], Any]) -> Any:
        """Launch the calls of a batch, which all end when it does. Returns their work."""
        calls = self._batch.pop(threading.get_ident(), [])
        work, tape = end(), self._shared.tape()
        if tape is not None and calls:
            self._begun(tape, calls, PROGRAM, work)
        return work

    def _begun(self, tape: Tape, calls: list[tuple[Called, Mark]], tag: str, work: Any) -> None:
        shared, known = self._shared, None
        for call, ready in calls:
            metadata = self._metadata(call)
            if work is None:
                self._ended_in_call(tape, call.stream, tag, ready, metadata)
                continue
            key = weakref.ref(work)
            one = Begun(tape, call.op, call.stream, tag, metadata, ready, key, call.storages)
            if shared.on_gpu and call.stream != "barrier":  # whose wait would block the host here
                known = self._ended_aside(one, work, known)
            elif not shared.on_gpu and call.stream != "p2p":
                self._ends_later(one, work)
            if not one.timed:
                tape.count_untimed(call.op)
            self._open[id(work)] = one
        if work is not None:
            self._newest.append(work)

    def _metadata(self, call: Called) -> dict[str, Any]:
        found = self._shared.describe(call.op, call.group, call.bytes, call.peer)
        parts = call.peer_bytes
        return found if parts is None else {**found, "peer_bytes": parts}

    def _current(self) -> torch.cuda.Stream | None:
        return current_stream(self._shared.device) if self._shared.on_gpu else None

    def _ended_in_call(
        self, tape: Tape, stream: str, tag: str, start: Mark, metadata: dict[str, Any]
    ) -> None:
        """The backend returned no work: it ran on the current stream, or blocked the host."""
        on = self._current()
        end = self._shared.clock.mark(on)
        tape.add(stream, tag, start, end, metadata)
        if on is None or on is self._compute():
            tape.gates.append(StreamGate(stream, start, end))

    def _ended_aside(self, one: Begun, work: Any, known: Mark | None) -> Mark:
        """On a GPU: a stream of ours waits for it and takes the end. `known` is the end of its batch."""
        shared = self._shared
        if known is None:
            queue = f"{one.stream}:{one.metadata['group']}"
            side, current = shared.streams.of(queue), current_stream(shared.device)
            torch.cuda.set_stream(side)
            try:
                WAITS.wait(work)
                known = shared.clock.mark(side)
            finally:
                torch.cuda.set_stream(current)
            one.tape.add_queued(one.stream, one.tag, one.start, known, one.metadata, queue=queue)
        else:
            one.tape.add(one.stream, one.tag, one.start, known, one.metadata)
        one.end = known
        return known

    def _ends_later(self, one: Begun, work: Any) -> None:
        """On the host: the end is taken where its future completes, on a thread of the backend."""
        clock, tape = self._shared.clock, one.tape
        stream, tag, start, metadata = one.stream, one.tag, one.start, one.metadata

        # It keeps neither the work nor its group: were it the last to hold the group, the group's own thread
        # would wait for its own end.
        def done(future: torch.futures.Future[Any]) -> None:
            del future
            tape.add(stream, tag, start, clock.mark(), metadata)

        try:
            one.noted = work.get_future().then(done)
        except RuntimeError:
            return  # the backend has no futures: the program's wait shows the end

    # --- waiting -------------------------------------------------------------------------------------------

    def waited(self, work: Any, wait: Callable[[], Any]) -> Any:
        """Wait for a work, as the program asked."""
        one = self._open.get(id(work))
        return self._waited(one if one is not None and one.work() is work else None, wait)

    def waited_for(self, tensor: Any, wait: Callable[[], Any]) -> Any:
        """Wait for the functional collective whose result is `tensor`."""
        address = storage_of(tensor) if self._open else None
        found = None if address is None else [one for one in self._open.values() if address in one.storages]
        return self._waited(found[-1] if found else None, wait)

    def _waited(self, one: Begun | None, wait: Callable[[], Any]) -> Any:
        """Nothing is computed meanwhile."""
        shared = self._shared
        tape = shared.tape()
        if tape is None or shared.inside or one is None:
            return wait()
        self._forget(one)
        on = self._current()
        before = shared.clock.mark(on)
        found = wait()
        if one.noted is not None:
            one.noted.wait()
        after = shared.clock.mark(on)
        if not one.timed:
            # Of a call from an earlier step only the wait is known here.
            one.tape.count_untimed(one.op, -1 if one.tape is tape else 0)
            tape.add(one.stream, one.tag, one.start if one.tape is tape else before, after, one.metadata)
        if on is None:
            tape.gates.append(StreamGate(one.stream, before, after))
        elif on is self._compute():
            tape.gates.append(StreamGate(one.stream, before, one.end if one.end is not None else after))
        return found

    def held(self, run: Callable[[], Any]) -> Any:
        """Run something that makes calls and waits for them in C++, such as DDP's broadcast of buffers."""
        shared = self._shared
        tape = shared.tape()
        if tape is None or shared.inside:
            return run()
        on, known = self._current(), set(self._open)
        before = shared.clock.mark(on)
        found = run()
        made = [one for key, one in list(self._open.items()) if key not in known]
        for one in made:
            self._forget(one)
            if one.noted is not None:
                one.noted.wait()
        after = shared.clock.mark(on)
        if on is None or on is self._compute():
            for stream in {one.stream for one in made}:
                tape.gates.append(StreamGate(stream, before, after))
        return found

    def _forget(self, one: Begun) -> None:
        for key in [key for key, other in list(self._open.items()) if other is one]:
            del self._open[key]

    def close(self, tape: Tape) -> None:
        """The step is over. Calls that are under way still are counted as not timed."""
        for key, one in list(self._open.items()):
            if one.tape is tape and one.noted is not None and not one.noted.done():
                tape.count_untimed(one.op)
            if one.tape is not tape or one.timed:
                del self._open[key]
        self._newest.clear()


def _reducing(frame: FrameType | None) -> bool:
    """Returns True if DDP's reducer makes the call: autograd calls C++, or a communication hook, directly."""
    code = getattr(_ENGINE, "__code__", None)
    below = None
    if frame is not None:
        frame = frame.f_back
    while frame is not None and frame.f_code is not code:
        below, frame = frame, frame.f_back
    if below is None:
        return True
    names = below.f_code.co_varnames[: below.f_code.co_argcount]
    return bool(names) and any(isinstance(below.f_locals.get(name), dist.GradBucket) for name in names)  # type: ignore[attr-defined]


uncompiled(Watching, Begun, _reducing, CollectiveRunner, Tape, HostClock, CudaClock)
