"""The node's terminal marker, and the markers of all nodes merged."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence

from aorta.artefacts.agents import as_it_is, this_process
from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import NodeStatus, RankExit, State
from aorta.artefacts.status import merge_status
from aorta.errors import ArtefactError
from aorta.runner.options import NodeOptions

_MERGES = 10
_RESERVE_BYTES = 256 << 10
"""Enough for both files of the end, also of a job of a thousand nodes."""


class Marker:
    """`nodes/node<i>/status.json` from start to end.

    While the node runs, it keeps some room on the disk, so that the end can be said also where training, or
    another process, has filled it.
    """

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._started = time.time_ns()
        self._reserve = options.run_dir.node(options.node_index).reserve
        self.lost: list[str] = []
        self._saving = False

    def begin(self) -> None:
        """Write that this node is running."""
        self._write("running", None, None, ())
        with contextlib.suppress(OSError):
            # Random, as zeros take no room on a file system that compresses.
            self._reserve.write_bytes(os.urandom(_RESERVE_BYTES))

    def saving(self) -> None:
        """Write that the ranks have ended and that their traces and samples are being saved."""
        self._saving = True
        with contextlib.suppress(OSError):
            self._write("running", None, None, ())

    def end(
        self,
        state: State,
        *,
        exit_code: int | None = None,
        signal: str | None = None,
        ranks: Sequence[RankExit] = (),
    ) -> None:
        """Write how this node ended, and merge the markers of all nodes."""
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)
        self._saving = False
        self._write(state, exit_code, signal, ranks, time.time_ns())
        publish(self._options)

    def _write(
        self,
        state: State,
        exit_code: int | None,
        signal: str | None,
        ranks: Sequence[RankExit],
        ended_wall_ns: int | None = None,
    ) -> None:
        status = NodeStatus(
            node_index=self._options.node_index,
            host=socket.gethostname(),
            attempt=self._options.attempt,
            state=state,
            started_wall_ns=self._started,
            ended_wall_ns=ended_wall_ns,
            exit_code=exit_code,
            signal=signal,
            ranks=list(ranks),
            lost=list(self.lost),
            agent=this_process(),
            saving=self._saving,
        )
        write_json(self._options.run_dir.node(self._options.node_index).status, status)


def publish(options: NodeOptions) -> None:
    """Merge the markers into the run's `status.json`.

    Nodes that end together merge together; each looks again after writing, so that the last file is made of
    all.
    """
    run = options.run_dir
    seen: list[NodeStatus] | None = None
    for _ in range(_MERGES):
        markers = read_markers(run)
        if markers == seen:
            break
        write_json(run.status, merge_status(options.job_id, options.attempt, markers, range(options.nodes)))
        seen = markers


def read_markers(run: RunDir) -> list[NodeStatus]:
    """The nodes' markers that can be read, by node."""
    found = []
    for _, node in run.nodes():
        with contextlib.suppress(ArtefactError):
            found.append(as_it_is(read_json(node.status, NodeStatus), node.status))
    return found
