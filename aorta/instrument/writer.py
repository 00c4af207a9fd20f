"""Step records on disk: one file per rank, one line per step, each line written at once."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import BinaryIO

from aorta.artefacts.io import write_whole
from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_record import StepRecord, encode

log = logging.getLogger(__name__)


class RecordWriter:
    """Writes the records of one rank.

    A full disk loses records, not the training: a line that does not fit is taken back. The next line is
    tried again, so that recording goes on when there is room. A log line tells what was lost, and the
    analysis sees the gap in the numbers of the steps.

    Args:
        stream: the file, without a buffer: a line is one write, complete in the file before the next one.
        name: of the file, for messages.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._name = name
        self._stream = stream
        self._lost: list[int] = []
        """First and last step, and number, of the records that are being lost."""

    def write(self, record: StepRecord) -> None:
        """Append one line."""
        try:
            write_whole(self._stream.fileno(), encode(record) + b"\n")
        except OSError as error:
            self._lose(record.global_step, error)
        else:
            self._say_lost("recording goes on")

    def close(self) -> None:
        """Close the file; writing after that is an error."""
        self._say_lost("recording ends")
        self._stream.close()

    def _lose(self, step: int, error: OSError) -> None:
        if not self._lost:
            log.error("%s: %s; step records are lost from step %d on", self._name, error.strerror, step)
            self._lost = [step, step, 0]
        self._lost[1] = step
        self._lost[2] += 1

    def _say_lost(self, then: str) -> None:
        if self._lost:
            first, last, count = self._lost
            log.error("%s: %d records lost, steps %d to %d; %s", self._name, count, first, last, then)
            self._lost = []


def set_aside(run: RunDir) -> Path | None:
    """Move what an earlier run left in `run` into a folder named after the moment it ended.

    Runs never mix: a run of 2 ranks after one of 4 would otherwise be read with two old ranks.

    Returns:
        The folder, or None where there was nothing to move.
    """
    left = [
        path
        for path in (
            run.metrics_csv,
            run.config,
            run.torch_profiler,
            run.injected,
            run.planned,
            run.checkpoint(0).parent,
            run.root / "nodes",
        )
        if path.exists()
    ]
    records = list(run.all_records().values())
    if not records and not run.metrics_csv.exists():
        return None
    ended = max(path.stat().st_mtime for path in [*records, run.metrics_csv] if path.exists())
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(ended))
    folder = run.earlier(stamp)
    number = 1
    while folder.exists():
        folder = run.earlier(f"{stamp}_{number}")
        number += 1
    folder.mkdir(parents=True)
    for path in [*records, *left]:
        os.replace(path, folder / path.name)  # noqa: PTH105 (rename without following)
    return folder
