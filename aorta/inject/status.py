"""The file in which a rank says that the hooks took, and what they saw."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import sys
from pathlib import Path
from typing import BinaryIO

import torch

from aorta.artefacts import names
from aorta.artefacts.instrument_record import InstrumentRecord, encode
from aorta.artefacts.layout import RunDir
from aorta.inject.hooks import Hooks
from aorta.inject.loaders import LoaderWorkers
from aorta.inject.stacks import Stacks


def installed_only(rank: int) -> InstrumentRecord:
    """Return what there is to say of a rank before its first steps."""
    return InstrumentRecord(
        rank=rank,
        pid=os.getpid(),
        python=sys.executable,
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
        note="no torch optimizer has made two updates",
    )


def mark_installed() -> None:
    """Say that the hooks took in this rank, where its number is known and nothing was said before.

    Processes that load data have the same number: they find the file.
    """
    rank, folder = os.environ.get("RANK", ""), os.environ.get(names.RUN_DIR)
    if not rank.isdigit() or not folder:
        return
    with contextlib.suppress(OSError):
        path = RunDir(Path(folder)).instrument(int(rank))
        with path.open("xb") as stream:
            stream.write(encode(installed_only(int(rank))))


class InstrumentStatus:
    """Writes `rank_<rank>_instrument.json`, and keeps a second process off the rank's files.

    Args:
        path: of the file.
        rank: of this process.

    Raises:
        BlockingIOError: another process that lives records this rank.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        path.parent.mkdir(parents=True, exist_ok=True)
        self._held: BinaryIO = path.open("ab")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._held.close()
            raise
        except OSError:
            pass  # a file system without locks

    def write(
        self,
        hooks: Hooks,
        roots: list[str],
        steps: int,
        stacks: Stacks | None,
        *,
        workers: LoaderWorkers,
        note: str | None,
        ended: bool,
    ) -> None:
        """Replace the content of the file."""
        record = InstrumentRecord(
            rank=self._rank,
            pid=os.getpid(),
            python=sys.executable,
            python_version=platform.python_version(),
            torch_version=str(torch.__version__),
            threads=torch.get_num_threads(),
            loader_workers=workers.most,
            loader_starts=None if workers.most is None else workers.starts,
            loader_ready=workers.ready,
            loader_start_ms=workers.start_ns / 1e6,
            roots=roots,
            seen=sorted(hooks.seen),
            hooks_off=dict(hooks.off),
            steps=steps,
            samples=dict(stacks.parts) if stacks else {},
            sampled_ms=stacks.times_ms() if stacks else None,
            interval_ms=stacks.interval_ms if stacks else 0.0,
            note=note,
            ended=ended,
            places=stacks.places() if stacks else [],
        )
        content = encode(record)
        # In place: the lock is the file's. A reader that finds half of it reads again when the run has ended.
        os.ftruncate(self._held.fileno(), 0)
        os.write(self._held.fileno(), content)
