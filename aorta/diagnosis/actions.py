"""What to change, by cause: the knob with its present value first, then the general remedy."""

from __future__ import annotations

from aorta.diagnosis.context import Context


def data_loading(context: Context, ranks: list[int]) -> list[str]:
    """Remedies of a slow loader on `ranks` (empty: all)."""
    actions = []
    config = context.config
    if config is not None:
        workers = config.dataloader.num_workers
        if config.dataset.delay_ms > 0:
            delay = config.dataset.delay_ms
            actions.append(f"dataset.delay_ms is {delay:g}: every sample sleeps that long; set it to 0")
        if workers == 0:
            actions.append(
                "dataloader.num_workers is 0, so samples are made between steps: set it to 2 or more"
            )
        else:
            cpus = f" ({context.cpus_usable} CPUs are usable on a node)" if context.cpus_usable else ""
            actions.append(f"raise dataloader.num_workers, now {workers}{cpus}")
        if context.cuda and not config.dataloader.pin_memory:
            actions.append("set dataloader.pin_memory to true, so that copies to the GPU overlap")
    if ranks:
        where = ", ".join(context.nodes(ranks)) or "their node"
        actions.append(f"look at the storage and the CPUs of {where}: the other ranks' loaders keep up")
    actions.append(
        "move preprocessing out of the loop: prepare samples once, in few large files on fast storage"
    )
    return actions


def communication(context: Context) -> list[str]:
    """Remedies of exposed communication."""
    actions = []
    config = context.config
    if config is not None:
        if not config.distributed.enable_overlap:
            actions.append(
                "distributed.enable_overlap is false: set it to true, so that backward hides the exchange"
            )
        actions.append(
            f"try other bucket sizes, distributed.bucket_cap_mb (now {config.distributed.bucket_cap_mb:g}): "
            "smaller ones start earlier, larger ones carry more a call"
        )
        actions.append(
            "exchange less often a sample: raise training.gradient_accumulation "
            f"(now {config.training.gradient_accumulation}) or training.batch_size "
            f"(now {config.training.batch_size}), if the optimization allows it"
        )
    if len(set(context.hosts.values())) > 1:
        actions.append(
            "check the link between the nodes: which interface and transport the backend chose, and its rate"
        )
    if config is None:
        actions.append(
            "give the exchange more compute to hide under: larger batches, gradient accumulation, overlap"
        )
    return actions


def straggler(context: Context, ranks: list[int], compute_ms: float, host_ms: float) -> list[str]:
    """Remedies of ranks that the others wait for."""
    several = len(set(context.hosts.values())) > 1
    where = ", ".join(context.nodes(ranks)) if several else ""
    actions = []
    if ranks and where:
        actions.append(f"compare {where} with the other nodes: clocks, temperature, other processes")
    if compute_ms >= host_ms:
        actions.append("give every rank the same work a step: equal batches and sequence lengths")
    else:
        actions.append("look at the host side of these ranks: CPU pinning, OMP_NUM_THREADS, other processes")
    if not ranks:
        actions.append(
            "the late rank changes from step to step: reduce what ranks share, such as CPUs of one machine"
        )
    elif where:
        actions.append(f"run once without {where} (sbatch --exclude) to see what it costs")
    return actions


def memory(context: Context, host: bool) -> list[str]:
    """Remedies of memory that is nearly full."""
    config = context.config
    if host:
        workers = f", now {config.dataloader.num_workers}" if config is not None else ""
        return [
            "ask for more memory (sbatch --mem): beyond the limit the kernel kills processes of the job",
            f"use fewer loader workers (dataloader.num_workers{workers}): each has its own copies",
        ]
    if config is None:
        return ["use a smaller batch with gradient accumulation, or shard the model's states over ranks"]
    batch, accumulation = config.training.batch_size, config.training.gradient_accumulation
    return [
        f"lower training.batch_size (now {batch}), raise training.gradient_accumulation (now {accumulation})",
        "shard the model's states over ranks (FSDP), or recompute activations in backward",
    ]


def host_bound(*, launch_bound: bool) -> list[str]:
    """Remedies of a GPU that waits for its host."""
    if launch_bound:
        return [
            "launch fewer, larger kernels: larger batches, fused or foreach optimizers, torch.compile",
            "replay the step as a CUDA graph (torch.compile mode reduce-overhead): one launch, many kernels",
        ]
    return [
        "remove what makes the host wait for the GPU in the step: .item(), .cpu(), printing losses, "
        "synchronising timers",
        "move CPU work out of the step: preprocessing to loader workers, logging to every n-th step",
        "check that the process has CPU cores of its own, and how many threads compete for them",
    ]


def gpu_underutilization(context: Context) -> list[str]:
    """Remedies of a GPU that idles while nothing else explains it."""
    actions = []
    config = context.config
    if config is not None:
        actions.append(
            f"raise training.batch_size (now {config.training.batch_size}): more work a kernel launch"
        )
        if not config.compile.enabled:
            actions.append("set compile.enabled to true: fused kernels need fewer launches")
        if not config.dataloader.pin_memory:
            actions.append("set dataloader.pin_memory to true, so that copies to the GPU overlap")
    actions.append("profile the host side of a step: launches, Python between kernels, .item() and .cpu()")
    return actions
