"""Tells the signal for the job's time limit from the one for a cancelled job."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from aorta.launch.durations import parse_elapsed
from aorta.runner.options import TimeLimits
from aorta.units import NS_PER_S

_SQUEUE_TIMEOUT_S = 5.0


def job_ends_wall_ns(environ: Mapping[str, str], now_ns: int) -> int | None:
    """Returns when Slurm will end the job, in ns since the epoch; None without a limit, or if unknown.

    Slurm's own variable is not there in older versions; then squeue is asked for the time that is left.
    """
    end = environ.get("SLURM_JOB_END_TIME", "")
    if end.isdigit():
        return int(end) * NS_PER_S
    left = parse_elapsed(_squeue(environ, "%L"))
    return now_ns + left * NS_PER_S if left is not None else None


def hit_time_limit(
    environ: Mapping[str, str], node_index: int, limits: TimeLimits, ends_wall_ns: int | None, now_ns: int
) -> bool:
    """True if the signal that just arrived means the job's time limit.

    Args:
        environ: of the agent; Slurm's own end time decides where it is there.
        node_index: node 0 asks squeue otherwise, which also knows of a cancellation.
        limits: how near the end a signal means it.
        ends_wall_ns: the end that node 0 published; decides for the other nodes.
        now_ns: since the epoch.
    """
    if environ.get("SLURM_JOB_END_TIME", "").isdigit():
        ends_wall_ns = job_ends_wall_ns(environ, now_ns)
    elif node_index == 0 and (answer := _squeue(environ, "%T|%L")):
        return limit_by_squeue(answer, limits.signal_lead_s)
    return ends_wall_ns is not None and ends_wall_ns - now_ns <= limits.signal_lead_s * NS_PER_S


def limit_by_squeue(answer: str, lead_s: float) -> bool:
    """The same from `squeue -o '%T|%L'`: no time left, or running with little left.

    A job that was cancelled is completing when the signal comes, however little time it had left.
    """
    state, _, left = answer.strip().partition("|")
    seconds = parse_elapsed(left)
    if seconds is None:
        return False
    return seconds <= 0 or (state == "RUNNING" and seconds <= lead_s)


def _squeue(environ: Mapping[str, str], columns: str) -> str:
    """squeue's row of this job; empty outside Slurm, and where squeue does not answer."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return ""
    try:
        return subprocess.run(
            ["squeue", "-h", "-j", job, "-o", columns],
            capture_output=True,
            text=True,
            timeout=_SQUEUE_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
