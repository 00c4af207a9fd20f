"""The monitor beside a run that no node agent watches over."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aorta.artefacts.layout import RunDir
from aorta.config import schema
from aorta.instrument.identity import run_directory
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that the monitor may take to flush before it is killed."""


def monitor_command(run: RunDir, node_index: int, interval_s: float, gpu: bool, cpu: bool) -> list[str]:
    """The command line of this node's monitor."""
    command = [sys.executable, "-m", "aorta", "monitor", "--output-dir", str(run.node(node_index).root)]
    command += [
        "--interval",
        f"{interval_s:g}",
        "--node-index",
        str(node_index),
        "--parent-pid",
        str(os.getpid()),
    ]
    return command + ([] if gpu else ["--no-gpu"]) + ([] if cpu else ["--no-cpu"])


@contextmanager
def monitored(
    run: RunDir, world: World, config: schema.MonitorConfig, gpu: bool, cpu: bool
) -> Iterator[None]:
    """Sample GPUs and CPUs of this node while the body runs: one monitor per node, started by its first rank.

    Inside a job the node agent already does, whatever the flags say.
    """
    if not (gpu or cpu) or world.local_rank != 0:
        yield
        return
    if run_directory() is not None:
        log.info(
            "--monitor-gpu/--monitor-cpu: this job's node agent samples already, so no monitor is started"
        )
        yield
        return
    folder = run.node(world.node_index)
    folder.logs.mkdir(parents=True, exist_ok=True)
    with (folder.logs / "monitor.log").open("wb") as output:
        child = subprocess.Popen(
            monitor_command(run, world.node_index, config.interval_s, gpu, cpu),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        _end(child, str(folder.logs / "monitor.log"))


def _end(child: subprocess.Popen[bytes], output: str) -> None:
    if child.poll() is not None:
        log.warning("the monitor ended early with exit code %s: see %s", child.returncode, output)
        return
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        log.warning("the monitor did not end within %.0f s and was killed", GRACE_S)
