"""Marks to times, on a clock that counts."""

from __future__ import annotations

from aorta.instrument.steps import Timed
from aorta.instrument.streams import HostClock, Mark
from aorta.instrument.tape import Tape


def test_backward_is_compute_until_the_last_bucket_is_ready() -> None:
    tape = Tape(start=100, host_start_ns=100)
    tape.gradients_ready = 160
    tape.gradients_ready = 180
    tape.add_backward(150, 200)
    times = tape.resolve(HostClock(), 210, communication_observed=True)
    assert times.pieces == [Timed("compute", "backward", 150, 180), Timed("host", "gradient_wait", 180, 200)]
    assert (times.start, times.end) == (100, 210)


def test_a_backward_without_exchange_is_compute_to_its_end() -> None:
    tape = Tape(start=0, host_start_ns=0)
    tape.gradients_ready = 30
    tape.add_backward(10, 40)
    tape.add_backward(50, 70)  # the bucket of the pass before says nothing about this one
    times = tape.resolve(HostClock(), 80, communication_observed=True)
    assert times.pieces[-1] == Timed("compute", "backward", 50, 70)
    assert len(times.pieces) == 3


def test_a_queued_piece_begins_when_it_is_ready_and_the_one_before_is_done() -> None:
    tape = Tape(start=0, host_start_ns=0)
    tape.add_queued("allreduce", "gradients", 10, 30)
    tape.add_queued("allgather", "fsdp", 12, 20)  # another queue
    tape.add_queued("allreduce", "gradients", 15, 40)
    tape.add_queued("allreduce", "gradients", 60, 80)
    pieces = tape.read(HostClock(), 90).pieces
    assert [(stream, start, end) for stream, _, start, end, _ in pieces] == [
        ("allreduce", 10, 30),
        ("allgather", 12, 20),
        ("allreduce", 30, 40),
        ("allreduce", 60, 80),
    ]


def test_what_is_noted_while_the_tape_is_read_goes_nowhere() -> None:
    """A thread of gloo notes the end of a collective for which a later step waits."""

    class Meanwhile(HostClock):
        def nanoseconds(self, mark: Mark) -> int:
            tape.add("allreduce", "program", 10**9, 10**9 + 1)
            return super().nanoseconds(mark)

    tape = Tape(10**6, 10**6)
    tape.add("compute", "forward", 10**6 + 1, 10**6 + 2)
    read = tape.read(Meanwhile(), 10**6 + 5)
    assert read.pieces == [("compute", "forward", 10**6 + 1, 10**6 + 2, None)]
