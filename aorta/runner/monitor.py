"""The monitor of a node while its ranks run: a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from aorta.artefacts.layout import NodeDir
from aorta.runner.exits import tail
from aorta.runner.options import NodeOptions
from aorta.runner.prepared import Prepared
from aorta.runner.processes import Child

_GRACE_S = 5.0


class MonitorProcess:
    """The monitor that the configuration asks for; it may ask for none."""

    def __init__(
        self, options: NodeOptions, folder: NodeDir, prepared: Prepared, environ: Mapping[str, str]
    ) -> None:
        self.early: int | None = None
        """The code with which it ended while the ranks ran. None if it has not."""
        self._child: Child | None = None
        self._log = folder.logs / "monitor.log"
        wanted = prepared.config.monitor
        if not wanted.gpu and not wanted.cpu:
            return
        argv = [sys.executable, "-m", "aorta", "monitor", "--output-dir", str(folder.root.resolve())]
        argv += ["--interval", f"{wanted.interval_s:g}", "--node-index", str(options.node_index)]
        argv += ["--parent-pid", str(os.getpid())]
        for gpu in prepared.info.gpus:
            argv += ["--gpu-uuid", gpu.uuid]
        argv += [] if wanted.gpu else ["--no-gpu"]
        argv += [] if wanted.cpu else ["--no-cpu"]
        self._child = Child(argv, env=environ, log=self._log)

    @property
    def pids(self) -> list[int]:
        """Its process id, which is not killed with the ranks; empty without a monitor."""
        return [self._child.pid] if self._child is not None else []

    def look(self) -> None:
        """Notice that it has ended."""
        if self._child is not None and self.early is None:
            self.early = self._child.poll()

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop(_GRACE_S)

    def lost(self, *, told: bool) -> list[str]:
        """Returns that samples are lost where it ended early.

        Args:
            told: this agent got a signal. Slurm signals the monitor too, which then ends as it should.
        """
        if self.early is None or (told and self.early == 0):
            return []
        words = tail(self._log)
        reason = f": {words[-1]}" if words else ""
        return [f"monitor samples: the monitor ended early with {self.early}{reason}"]
