"""Profile mode: one implementation under torch.profiler."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from aorta.artefacts.io import write_text
from aorta.artefacts.study_layout import DdpBenchmarkDir
from aorta.units import ns_to_ms
from aorta.workloads.ddp_benchmark.model import parameter_count
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.timing import StepSample
from aorta.workloads.ddp_benchmark.training import BenchmarkTraining, EpochLog, epoch_type, learning_rate
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)

TOP = 20
"""Operators in the summary."""


def epoch_name(epoch: int, options: BenchmarkOptions) -> str:
    """The range of an epoch in the trace; the rate is that of its first step."""
    rate = learning_rate(epoch * options.steps_per_epoch, options.warmup_steps)
    return f"epoch_{epoch}_{epoch_type(epoch, options)}_lr_{rate:.6f}"


def trace(options: BenchmarkOptions, world: World) -> None:
    """Train under the profiler; each rank writes its trace, rank 0 the summary."""
    name, folder = options.profile_implementation, DdpBenchmarkDir(options.profile_output_dir)
    training = BenchmarkTraining(name, options, world)
    progress = EpochLog(training, world)
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True, profile_memory=True) as recorded:
        for epoch in range(options.num_epochs):
            with record_function(epoch_name(epoch, options)):
                for step in range(options.steps_per_epoch):
                    index = epoch * options.steps_per_epoch + step
                    # The name by which readers of such traces find steps.
                    with record_function(f"ProfilerStep#{index}"):
                        training.step(index)
                    progress.poll()
            progress.end_epoch(epoch)
        progress.close()
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
    path = folder.trace(name, world.rank)
    partial = path.with_name(f".{path.name}.partial")
    recorded.export_chrome_trace(str(partial))
    partial.replace(path)
    if world.rank == 0:
        key = "self_device_time_total" if world.device.type == "cuda" else "self_cpu_time_total"
        operators = recorded.key_averages().table(sort_by=key, row_limit=TOP, max_name_column_width=60)
        text = summary(options, world, training.timer.samples(), operators)
        write_text(folder.summary(name), text)
    dist.barrier(device_ids=[world.device.index] if world.device.type == "cuda" else None)
    if world.rank == 0:
        log.info("traces and summary: %s", folder.root)


def summary(options: BenchmarkOptions, world: World, samples: list[StepSample], operators: str) -> str:
    """Summary of the trace, in readable lines; times are of rank 0 and include the profiler's own cost."""
    name, folder = options.profile_implementation, DdpBenchmarkDir(options.profile_output_dir)
    lines = [
        f"implementation    {name}",
        f"ranks             {world.size}, rank 0 on {world.device}",
        f"torch             {torch.__version__}",
        f"model             {parameter_count(options):,} parameters: d_model {options.d_model},"
        f" {options.num_layers} layers, {options.num_heads} heads, d_ff {options.d_ff},"
        f" vocabulary {options.vocab_size}, context {options.context_length},"
        f" rope theta {options.rope_theta:g}",
        f"step              {options.batch_size} samples per rank, {options.precision}",
        f"epochs            {options.num_epochs} of {options.steps_per_epoch} steps,"
        f" {options.warmup_epochs} warm-up",
        f"largest bucket    {options.bucket_size_mb:g} MiB (ddp_bucketed, torch_ddp)",
        "",
        "epoch  type      first lr  last loss  mean step ms",
    ]
    per = options.steps_per_epoch
    for epoch in range(options.num_epochs):
        part = samples[epoch * per : (epoch + 1) * per]
        rate = learning_rate(epoch * per, options.warmup_steps)
        last = part[-1].loss
        loss = "not finite" if last is None else f"{last:.4f}"
        mean = ns_to_ms(sum(sample.end - sample.start for sample in part)) / len(part)
        lines.append(f"{epoch:5d}  {epoch_type(epoch, options):8s}  {rate:.6f}  {loss:>9s}  {mean:12.3f}")
    lines += ["", "traces", *(f"  {folder.trace(name, rank)}" for rank in range(world.size))]
    lines += ["", f"the {TOP} operators with the most time on rank 0", "", operators]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"
