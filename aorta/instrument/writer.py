"""Step records on disk: one file a rank, one line a step, each line written at once."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import StepRecord

log = logging.getLogger(__name__)


class RecordWriter:
    """Writes the records of one rank.

    A full disk ends the recording, not the training: the reason is logged once, and the analysis sees the
    records end.

    Args:
        stream: the file, without a buffer: a line is one write, complete in the file before the next one.
        name: of the file, for messages.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._name = name
        self._stream = stream
        self._encoder = msgspec.json.Encoder()
        self._lost = False

    def write(self, record: StepRecord) -> None:
        """Append one line."""
        if self._lost:
            return
        try:
            self._stream.write(self._encoder.encode(record) + b"\n")
        except OSError as error:
            self._lost = True
            log.error("%s: %s; no more step records from this rank", self._name, error.strerror)

    def close(self) -> None:
        """Close the file; writing after that is an error."""
        self._stream.close()


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
