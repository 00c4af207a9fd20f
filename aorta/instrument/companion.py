"""The process that turns a rank's measured steps into records and writes them.

Arithmetic and JSON of a step take longer than measuring it, and a thread would hold the interpreter that
queues the next kernels. `aorta.instrument.channel` starts this module with the pipes, and the record file.

It outlives the rank: what arrived is written, also when the rank was killed. It ends at the frame that
requests this, at the end of its input, or when the rank is gone. (A loader process forked from the rank may
keep the input open.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import time
from collections.abc import Iterator

from aorta.instrument.assemble import record_of, summary_of
from aorta.instrument.wire import Frames, frame, packed, read_constants, read_measured
from aorta.instrument.writer import RecordWriter

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
PAUSE_S = 0.03
"""Seconds from one look at the pipe to the next."""
NICENESS = 5
"""Niceness of the companion: where cores are short, training goes first."""


def arriving(source: int, parent: int) -> Iterator[bytes]:
    """Frames from the file descriptor `source`, until the empty one, its end, or the end of `parent`.

    It looks now and then, and does not wait at the pipe. Waking a process takes the rank up to 1 ms: the
    system may give it the rank's own core.
    """
    frames, waiter = Frames(), select.poll()
    waiter.register(source, select.POLLIN)
    while True:
        orphaned = os.getppid() != parent
        if not waiter.poll(0):
            if orphaned:
                return
            time.sleep(PAUSE_S)
            continue
        data = os.read(source, CHUNK_BYTES)
        if not data:
            return
        for content in frames.feed(data):
            if not content:
                return
            yield content
        time.sleep(PAUSE_S)


def serve(source: int, answers: int, records: int, name: str, parent: int) -> None:
    """Write the records of one rank.

    Args:
        source: file descriptor of the frames: `RankConstants`, then one `StepMeasurement` per step.
        answers: file descriptor for a `StepSummary` after each record.
        records: file descriptor of the record file.
        name: of that file, for messages.
        parent: process id of the rank.
    """
    writer = RecordWriter(os.fdopen(records, "wb", buffering=0), name)
    frames = arriving(source, parent)
    first = next(frames, None)
    if first is None:
        return
    constants = read_constants(first)
    heard = True
    for content in frames:
        record = record_of(constants, read_measured(content))
        writer.write(record)
        if heard:
            try:
                os.write(answers, frame(packed(summary_of(record))))
            except BrokenPipeError:
                heard = False  # the rank has died; what it measured still counts
    writer.close()


def main(arguments: list[str]) -> int:
    """The process: its record file's descriptor and name, and the rank's process id."""
    records, name, parent = arguments
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(
            0, os.SCHED_BATCH, os.sched_param(0)
        )  # it takes no core from a thread that runs
    try:
        serve(sys.stdin.fileno(), sys.stdout.fileno(), int(records), name, int(parent))
    except (EOFError, TypeError, ValueError) as error:
        log.error("%s: %s; no more step records from this rank", name, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
