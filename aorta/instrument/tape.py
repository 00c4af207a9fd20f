"""The marks of one open step, before they are turned into times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aorta.instrument.steps import COMPUTE, COPY, HOST, TakenTimes, step_times
from aorta.instrument.streams import Clock, Mark
from aorta.instrument.wire import Piece


class TapeEntry(NamedTuple):
    """A piece between two marks. A step has dozens: a frozen dataclass takes far longer to make."""

    stream: str
    tag: str
    start: Mark
    end: Mark
    metadata: dict[str, Any] | None = None
    after: Mark | None = None
    """End of the previous piece in the same queue. This piece began once both that end and `start` had
    passed."""


class StreamGate(NamedTuple):
    """A stretch of the compute stream in which it may stand still until a collective of `stream` is done."""

    stream: str
    start: Mark
    end: Mark


class Read(NamedTuple):
    """A step in ns: its pieces, and the stretches of compute that may have stood still."""

    start: int
    end: int
    pieces: list[Piece]
    waits: list[tuple[str, int, int]]


@dataclass(slots=True, eq=False)
class Tape:
    """Events of one step. The training thread, autograd's threads and completion callbacks append to it."""

    start: Mark
    host_start_ns: int
    entries: list[TapeEntry] = field(default_factory=list)
    gates: list[StreamGate] = field(default_factory=list)
    gradients_ready: Mark | None = None
    """Mark of the moment when the backward pass's last bucket had its gradients; None before the first."""
    copies_timed: bool = False
    queues: dict[str, Mark] = field(default_factory=dict)
    """The end of the newest piece of each queue."""
    untimed: dict[str, int] = field(default_factory=dict)
    """Calls of `torch.distributed` without a known end, by operation."""
    known: dict[int, Mark] = field(default_factory=dict)
    """After `read`: all marks but the step's own, by identity."""

    def add(
        self, stream: str, tag: str, start: Mark, end: Mark, metadata: dict[str, Any] | None = None
    ) -> None:
        """Note a piece."""
        self.entries.append(TapeEntry(stream, tag, start, end, metadata))

    def add_copy(self, start: Mark, end: Mark) -> None:
        """Note a batch's way to the GPU."""
        self.copies_timed = True
        self.add(COPY, "h2d", start, end)

    def add_queued(
        self,
        stream: str,
        tag: str,
        ready: Mark,
        end: Mark,
        metadata: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
    ) -> None:
        """Note a piece of a queue that only waits for `ready` marks and runs such pieces one after another.

        A piece begins when it is ready and the piece before is done, so no mark for its start is needed.
        Without a name, the queue is that of the stream.
        """
        name = queue or stream
        self.entries.append(TapeEntry(stream, tag, ready, end, metadata, self.queues.get(name)))
        self.queues[name] = end

    def count_untimed(self, op: str, calls: int = 1) -> None:
        """Note calls that were seen and not timed; a negative number takes some back."""
        self.untimed[op] = self.untimed.get(op, 0) + calls

    def add_backward(self, start: Mark, end: Mark) -> None:
        """A backward pass: compute until the last bucket is ready, after that the thread only waits for
        buckets.
        """
        ready = self.gradients_ready
        self.gradients_ready = None
        if ready is None:
            self.add(COMPUTE, "backward", start, end)
        else:
            self.add(COMPUTE, "backward", start, ready)
            self.add(HOST, "gradient_wait", ready, end)

    def read(self, clock: Clock, end: Mark) -> Read:
        """Marks to ns; every mark must have been passed."""
        clock.anchor(self.start, self.host_start_ns)
        # A mark may end one piece and begin another, and reading one costs more than remembering it.
        # A thread of gloo may note the end of a collective meanwhile, for which a later step waits.
        entries = list(self.entries)
        self.known = {id(mark): mark for mark in _marks(entries, self.gates)}
        at = {key: clock.nanoseconds(mark) for key, mark in self.known.items()}
        return Read(
            start=clock.nanoseconds(self.start),
            end=clock.nanoseconds(end),
            pieces=[
                (entry.stream, entry.tag, _begun(entry, at), at[id(entry.end)], entry.metadata)
                for entry in entries
            ],
            waits=[(gate.stream, at[id(gate.start)], at[id(gate.end)]) for gate in self.gates],
        )

    def resolve(self, clock: Clock, end: Mark, communication_observed: bool) -> TakenTimes:
        """The step, for calculations in this process; every mark must have been passed."""
        read = self.read(clock, end)
        return step_times(
            read.start,
            read.end,
            read.pieces,
            read.waits,
            communication_observed=communication_observed,
            copies_timed=self.copies_timed,
        )


def _marks(entries: Iterable[TapeEntry], gates: Iterable[StreamGate]) -> Iterator[Mark]:
    """All that were taken, the start excepted: the clock goes on from there."""
    for entry in entries:
        yield from (entry.start, entry.end)
    for gate in gates:
        yield from (gate.start, gate.end)


def _begun(entry: TapeEntry, at: dict[int, int]) -> int:
    start = at[id(entry.start)]
    return start if entry.after is None else max(start, at[id(entry.after)])
