"""`aorta monitor`: sample this node to CSV until told to stop."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("monitor")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the files.",
)
@click.option("--interval", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds.")
@click.option(
    "--node-index",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Index of the node, written in each row.",
)
@click.option("--gpu-uuid", "gpu_uuids", multiple=True, help="A GPU of the job. Default: all visible GPUs.")
@click.option("--no-gpu", is_flag=True, help="Do not sample GPUs.")
@click.option("--no-cpu", is_flag=True, help="Do not sample CPU, memory, disk and network.")
@click.option("--parent-pid", type=click.IntRange(min=1), help="Stop when this process has ended.")
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), help="Stop after this many seconds.")
def command(  # noqa: PLR0917
    output_dir: Path,
    interval: float,
    node_index: int,
    gpu_uuids: tuple[str, ...],
    no_gpu: bool,
    no_cpu: bool,
    parent_pid: int | None,
    duration: float | None,
) -> None:
    """Sample this node's GPUs and CPUs to CSV.

    This writes gpu_monitor.csv, cpu_monitor.csv and monitor_status.json. On SIGTERM or SIGINT, it writes all
    samples and ends.
    """
    if no_gpu and no_cpu:
        raise click.UsageError("--no-gpu and --no-cpu leave nothing to sample")
    from aorta.monitors.loop import SamplingOptions, run

    run(
        SamplingOptions(
            output_dir=output_dir,
            interval_s=interval,
            node_index=node_index,
            gpu_uuids=gpu_uuids,
            gpu=not no_gpu,
            cpu=not no_cpu,
            parent_pid=parent_pid,
            duration_s=duration,
        )
    )
