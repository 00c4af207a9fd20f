"""Keeps torch's flight recorder of a rank whose training does not go on.

The recorder tells which collectives the rank has called and ended. It lies in the process, so that only the
process itself can write it down: before a watchdog or a time limit ends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch

AFTER_S = 4.0
"""Seconds without a new step until the recorder is written: before the node's agent looks at stacks."""
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch that write the recorder of NCCL, and the one of gloo."""
_ENTRIES, _EMPTY = b'"entries":', b'"entries":[]'


class FlightKeeper:
    """Writes the recorder as soon as a step takes long, and removes the file when steps go on.

    Args:
        path: of the file.
        step: gives something that changes with each step.
    """

    def __init__(self, path: Path, step: Callable[[], object]) -> None:
        self._path, self._step = path, step
        self._last: object = None
        self._since_s = 0.0
        self._kept = False

    def look(self, now_s: float) -> None:
        """One turn of the thread that samples stacks."""
        step = self._step()
        if step != self._last:
            self._last, self._since_s = step, now_s
            if self._kept:
                self._path.unlink(missing_ok=True)
            self._kept = False
        elif not self._kept and step is not None and now_s - self._since_s > AFTER_S:
            self._kept = True
            with contextlib.suppress(Exception):  # a recorder that cannot be written must not end the samples
                self._write()

    def _write(self) -> None:
        module = getattr(torch._C, "_distributed_c10d", None)
        for name in _DUMPS:
            dump = getattr(module, name, None)
            data = bytes(dump()) if dump is not None else b""
            if _ENTRIES in data and _EMPTY not in data:
                self._path.write_bytes(data)
                return
