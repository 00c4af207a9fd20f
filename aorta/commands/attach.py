"""`aorta attach`: where a running job spends its time, without a restart."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import click

from aorta.commands._say import say, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aorta.artefacts.attached import GpuView, NodeView
    from aorta.attach.answer import AttachAnswer

_LARGEST_BYTES = 64 << 20


@click.command("attach")
@click.argument("job", metavar="[JOBID]", required=False)
@click.option(
    "--pid",
    "pids",
    multiple=True,
    type=click.IntRange(min=1),
    help="Look at processes of this node instead of a job.",
)
@click.option(
    "--seconds",
    default=8.0,
    show_default=True,
    type=click.FloatRange(min=1, max=60),
    help="How long to watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
def command(job: str | None, pids: tuple[int, ...], seconds: float, as_json: bool, watch: bool) -> None:
    """Watch one of your running jobs for some seconds, and say which rank the others wait for, and where.

    JOBID is a Slurm job: 7, 7_2 of an array, 7+1 of a heterogeneous job, 7.1 for one of its steps. It can
    also be the id of a run of `aorta profile` on this machine. Without JOBID and --pid, aorta uses the job
    of the allocation in which this command runs. The job is neither stopped nor restarted.
    """
    found = _look(job, pids, seconds)
    _tell(found, as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        while watch:
            found = _look(job, pids, seconds)
            if not as_json and sys.stdout.isatty():
                click.clear()
            _tell(found, as_json=as_json)
    if found.kind == "insufficient_data":
        sys.exit(4)


def _tell(found: AttachAnswer, *, as_json: bool) -> None:
    if as_json:
        say_json(found)
    else:
        _show(found)


def _look(job: str | None, pids: tuple[int, ...], seconds: float) -> AttachAnswer:
    import os

    from aorta.artefacts.names import LOCAL
    from aorta.attach.processes import of_job, of_pids
    from aorta.attach.sample import node_view
    from aorta.errors import PlanError

    if pids:
        return _answered([node_view(of_pids(pids), seconds, recorders=True)], seconds)
    job = job or os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise PlanError("no job is named", "type aorta attach JOBID, or aorta attach --pid PID")
    if job.startswith(LOCAL):
        return _answered([node_view(of_job(job), seconds, recorders=True)], seconds)
    return _of_slurm(job, seconds)


def _of_slurm(job: str, seconds: float) -> AttachAnswer:
    import getpass

    from aorta.attach.reach import node_views, running_jobs
    from aorta.launch.tools import call

    views, problems = node_views(running_jobs(job, getpass.getuser(), call), seconds, call)
    return _answered(views, seconds, problems)


def _answered(views: Sequence[NodeView], seconds: float, problems: Sequence[str] = ()) -> AttachAnswer:
    """The answer, with the time per step of a job that leaves step records."""
    from pathlib import Path

    from aorta.artefacts.layout import RunDir
    from aorta.attach.answer import answer
    from aorta.launch.so_far import so_far

    folders = {item.run_dir for view in views for item in view.processes if item.run_dir is not None}
    known = so_far(RunDir(Path(folders.pop()))) if len(folders) == 1 else None
    found = answer(views, seconds, problems, step_ms=known.step_ms if known is not None else None)
    return _with_recorders(found, views) if found.kind in ("hang", "no_cause_seen") else found


def _with_recorders(found: AttachAnswer, views: Sequence[NodeView]) -> AttachAnswer:
    """The answer, as flight recorders tell it, where stacks alone show that no rank stands out."""
    import zlib

    from msgspec.structs import replace

    from aorta.diagnosis.hang import hang_of_recordings, hang_verdict
    from aorta.errors import ArtefactError
    from aorta.readers.flight import decode_at

    recordings = []
    for item in (item for view in views for item in view.processes if item.recorder is not None):
        with contextlib.suppress(ArtefactError, zlib.error):
            assert item.recorder is not None
            data = zlib.decompressobj().decompress(item.recorder.data, _LARGEST_BYTES)
            recordings.append(decode_at(data, f"process {item.pid}", item.rank, item.recorder.wall_ns))
    hang = hang_of_recordings(recordings) if recordings else None
    if hang is None or (found.kind == "hang" and not hang.ranks):
        return found
    ranks = [item.rank for item in hang.ranks]
    if found.kind == "hang" and found.ranks == ranks:
        return replace(found, hang=hang)  # the stacks tell the line, too
    said = f"{hang_verdict(hang, '').statement} Source: {len(recordings)} flight recorders."
    return replace(found, kind="hang", ranks=ranks, statement=said, hang=hang)


def _show(found: AttachAnswer) -> None:
    say(found.statement)
    for item in found.by_rank:
        line = item.where
        most = f"most in {line.function} ({line.file}:{line.line})" if line else "no distinct line"
        share = f", {100 * line.share:.0f} %" if line else ""
        cpu = "" if item.cpu is None else f", uses {item.cpu:.1f} CPUs"
        times = f"waits {100 * item.waiting:.0f} %, loads {100 * item.loading:.0f} %{cpu}"
        say(f"  rank {item.rank} on {item.host}: {times}; {most}{share}{_gpu_words(item.gpu)}")
    for problem in found.problems:
        say(f"  note: {problem}")


def _gpu_words(gpu: GpuView | None) -> str:
    if gpu is None:
        return ""
    said = [] if gpu.utilization_pct is None else [f"{gpu.utilization_pct:.0f} % busy"]
    if gpu.sm_clock_mhz is not None:
        most = "" if gpu.max_sm_clock_mhz is None else f" of {gpu.max_sm_clock_mhz:.0f}"
        said.append(f"{gpu.sm_clock_mhz:.0f}{most} MHz")
    if gpu.memory_used_mib is not None and gpu.memory_total_mib is not None:
        said.append(f"{gpu.memory_used_mib / 1024:.0f} of {gpu.memory_total_mib / 1024:.0f} GiB")
    if gpu.slowed_by:
        said.append(f"slowed by {', '.join(gpu.slowed_by)}")
    return f"; GPU {gpu.index}: {', '.join(said)}" if said else ""
