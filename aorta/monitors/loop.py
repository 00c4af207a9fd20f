"""The sampler of one node: a sample of everything at each deadline, until there is a reason to stop."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from aorta.artefacts.columns import CPU, CPU_COLUMNS, GPU, GPU_COLUMNS, cells, sampled
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import NodeDir
from aorta.artefacts.records import MonitorStatus
from aorta.errors import RunError
from aorta.monitors.cadence import Cadence, DeadlineSleeper
from aorta.monitors.cpu import CpuSampler
from aorta.monitors.devices import Reading, Source
from aorta.monitors.gpu import ORDER, Opener, open_source
from aorta.monitors.output import Cell, CsvStream
from aorta.units import NS_PER_MS, NS_PER_S

STATUS_EVERY_S = 60


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options of the sampling: what, where to, and how long."""

    output_dir: Path
    interval_s: float
    node_index: int
    gpu_uuids: Sequence[str] = ()
    """Empty: the GPUs that the environment makes visible."""
    gpu: bool = True
    cpu: bool = True
    parent_pid: int | None = None
    """Stop when this process has ended."""
    duration_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    gpu_order: Sequence[Opener] = ORDER


def run(options: SamplingOptions) -> MonitorStatus:
    """Sample until a signal, the end of the parent or of the duration; the last status is written and
    returned.

    Raises:
        RunError: the files cannot be opened or written any more, a full disk for example.
    """
    node = NodeDir(options.output_dir)
    with DeadlineSleeper(options.parent_pid) as waiter:  # first of all, so that an early signal is not lost
        sampler = _Sampler(options, node)
        try:
            status = sampler.loop(waiter)
        finally:
            sampler.close()
    _write_status(node, status)
    if status.stopped_by == "write":
        raise RunError(
            f"monitor of node {options.node_index} stopped: {status.write_error}",
            "free some space in the results folder, or make it writable; earlier samples are kept",
        )
    return status


class _Sampler:
    def __init__(self, options: SamplingOptions, node: NodeDir) -> None:
        self._options = options
        self._node = node
        self._identity: tuple[Cell, Cell] = (socket.gethostname(), options.node_index)
        self._source: Source | None = None
        self._gpu_reason: str | None = "switched off"
        if options.gpu:
            self._source, self._gpu_reason = open_source(
                options.gpu_uuids, options.environment, options.gpu_order
            )
        self._cpu = CpuSampler(root=options.parent_pid) if options.cpu else None
        self._gpu_file: CsvStream | None = None
        self._cpu_file: CsvStream | None = None
        self._write_error: str | None = None

    def loop(self, waiter: DeadlineSleeper) -> MonitorStatus:
        """All samples; the status at the end."""
        cadence = Cadence(time.monotonic_ns(), round(self._options.interval_s * NS_PER_S))
        limit_s = self._options.duration_s
        end_ns = None if limit_s is None else cadence.start_ns + round(limit_s * NS_PER_S)
        next_status_ns = cadence.start_ns + STATUS_EVERY_S * NS_PER_S
        gc.freeze()  # nothing made so far will ever be garbage
        if not self._try(self._open):
            return self._status(cadence, "write")
        _write_status(self._node, self._status(cadence, None))
        while True:
            deadline_ns = cadence.deadline_ns
            if end_ns is not None and deadline_ns > end_ns:
                return self._status(cadence, waiter.wait_until(end_ns) or "end")
            reason = waiter.wait_until(deadline_ns)
            if reason is not None:
                return self._status(cadence, reason)
            now_ns = time.monotonic_ns()
            cadence.woke(now_ns)
            if not self._try(self._sample):
                return self._status(cadence, "write")
            if now_ns >= next_status_ns:
                next_status_ns = now_ns + STATUS_EVERY_S * NS_PER_S
                _write_status(self._node, self._status(cadence, None))

    def close(self) -> None:
        """Close files and sources."""
        for thing in (self._source, self._cpu, self._gpu_file, self._cpu_file):
            if thing is not None:
                thing.close()

    def _try(self, write: object) -> bool:
        """Do something that writes; a failure is kept in words."""
        assert callable(write)
        try:
            write()
        except OSError as error:
            self._write_error = f"{error.filename or self._node.root}: {error.strerror}"
            return False
        return True

    def _open(self) -> None:
        self._node.root.mkdir(parents=True, exist_ok=True)
        if self._source is not None:
            self._gpu_file = CsvStream(self._node.gpu_csv, GPU_COLUMNS)
        if self._cpu is not None:
            self._cpu_file = CsvStream(self._node.cpu_csv, CPU_COLUMNS)

    def _sample(self) -> None:
        if self._cpu is not None and self._cpu_file is not None:
            wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
            self._cpu_file.row(cells(CPU, {**self._place(wall_ns, mono_ns), **self._cpu.sample(mono_ns)}))
        if self._source is not None and self._gpu_file is not None:
            for reading in self._source.sample():
                self._gpu_file.row(self._gpu_row(reading))

    def _gpu_row(self, reading: Reading) -> list[Cell]:
        measured: dict[str, Cell] = {
            name: _short(value) if isinstance(value, float) else value
            for name, value in sampled(GPU, reading.sample).items()
        }
        place = self._place(reading.wall_ns, reading.mono_ns)
        return cells(GPU, {**place, **measured, "gpu_id": reading.gpu_id})

    def _place(self, wall_ns: int, mono_ns: int) -> dict[str, Cell]:
        """The columns that say where and when a sample was taken."""
        hostname, node_index = self._identity
        return {
            "timestamp": iso(wall_ns),
            "hostname": hostname,
            "node_index": node_index,
            "wall_ns": wall_ns,
            "mono_ns": mono_ns,
        }

    def _status(self, cadence: Cadence, stopped_by: str | None) -> MonitorStatus:
        return MonitorStatus(
            interval_s=self._options.interval_s,
            samples=cadence.samples,
            missed=cadence.missed,
            max_late_ms=cadence.max_late_ns / NS_PER_MS,
            gpu_source=self._source.name if self._source is not None else None,
            gpu_reason=self._gpu_reason,
            stopped_by=stopped_by,
            gpu_errors=dict(self._source.errors) if self._source is not None else {},
            write_error=self._write_error,
        )


def iso(wall_ns: int) -> str:
    """ISO 8601 in UTC with offset and milliseconds."""
    return datetime.fromtimestamp(wall_ns / NS_PER_S, tz=timezone.utc).isoformat(timespec="milliseconds")


def _short(value: float) -> Cell:
    """Whole numbers without a fraction, others to three decimals."""
    return int(value) if value == int(value) else round(value, 3)


def _write_status(node: NodeDir, status: MonitorStatus) -> None:
    """Best effort: the samples matter more, and a full disk is reported by the code that writes them."""
    try:
        write_json(node.monitor_status, status)
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"aorta monitor: {node.monitor_status}: {error.strerror}", file=sys.stderr, flush=True)
