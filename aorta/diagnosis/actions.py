"""What to change, by cause: the knob with its present value first, then the general remedy."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.config.schema import Config
from aorta.diagnosis.context import Context
from aorta.diagnosis.rank import rank_words


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
        nodes = context.nodes(ranks)
        shared = set(nodes) & {host for rank, host in context.hosts.items() if rank not in ranks}
        if nodes and not shared:
            where = ", ".join(nodes)
            actions.append(f"look at the storage and the CPUs of {where}: the other nodes' loaders keep up")
        else:
            who = rank_words(ranks)
            actions.append(
                f"see what loaders of {who} read that those beside them do not: files, shards, cores"
            )
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
        actions += _sharding(config) if config.distributed.strategy == "fsdp" else [_buckets(config)]
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


def _buckets(config: Config) -> str:
    return (
        f"try other bucket sizes, distributed.bucket_cap_mb (now {config.distributed.bucket_cap_mb:g}): "
        "smaller ones start earlier, larger ones carry more a call"
    )


def _sharding(config: Config) -> list[str]:
    """Knobs of sharded training that exchange less, or earlier."""
    fsdp, actions = config.fsdp, []
    if config.distributed.overlap_reduce_scatter is False:
        actions.append(
            "distributed.overlap_reduce_scatter is false: set it to true, so that backward hides gradients"
        )
    if fsdp.backward_prefetch != "BACKWARD_PRE" or not fsdp.forward_prefetch:
        actions.append(
            f"gather weights earlier: fsdp.backward_prefetch BACKWARD_PRE (now {fsdp.backward_prefetch}), "
            f"fsdp.forward_prefetch true (now {str(fsdp.forward_prefetch).lower()})"
        )
    less = {
        "full_shard": "shard_grad_op gathers the weights once a step, hybrid_shard within the nodes alone",
        "hybrid_shard": "shard_grad_op gathers the weights once a step",
        "shard_grad_op": "no_shard exchanges gradients alone",
    }.get(fsdp.sharding_strategy)
    if less is not None:
        actions.append(
            f"exchange less for more memory: fsdp.sharding_strategy is {fsdp.sharding_strategy}; {less}"
        )
    return actions


def straggler(context: Context, ranks: list[int], *, compute: bool, host: bool) -> list[str]:
    """Remedies of ranks that the others wait for, because of compute, host work or both."""
    several = len(set(context.hosts.values())) > 1
    where = ", ".join(context.nodes(ranks)) if several else ""
    actions = []
    if ranks and where:
        actions.append(f"compare {where} with the other nodes: clocks, temperature, other processes")
    if compute:
        actions.append("give every rank the same work a step: equal batches and sequence lengths")
    if host:
        threads = (
            f", training.cpu_threads (now {context.config.training.cpu_threads})" if context.config else ""
        )
        actions.append(
            f"look at the host side of these ranks: CPU pinning, threads{threads}, other processes"
        )
    if not ranks:
        actions.append(
            "the late rank changes from step to step: reduce what ranks share, such as CPUs of one machine"
        )
    elif where:
        actions.append(f"run once without {where} (sbatch --exclude) to see what it costs")
    return actions


def memory(context: Context, *, host: bool, swapping: Sequence[str]) -> list[str]:
    """Remedies of memory that is nearly full, or of nodes that are `swapping`."""
    config = context.config
    if host:
        count = config.dataloader.num_workers if config is not None else None
        workers = f"dataloader.num_workers, now {count}" if count is not None else "dataloader.num_workers"
        fewer = f"use fewer loader workers ({workers}): each has its own copies"
        nodes = ", ".join(swapping)
        look = [f"see on {nodes} whose memory it is (smem, or ps by VmSwap), and keep others off"]
        return [
            *(look if swapping else []),
            "ask for more memory (sbatch --mem): beyond the limit the kernel kills processes of the job",
            *([fewer] if count != 0 else []),
        ]
    if config is None:
        return ["use a smaller batch with gradient accumulation, or shard the model's states over ranks"]
    batch, accumulation = config.training.batch_size, config.training.gradient_accumulation
    actions = [
        f"lower training.batch_size (now {batch}), raise training.gradient_accumulation (now {accumulation})"
    ]
    if config.training.mixed_precision == "none":
        actions.append("set training.mixed_precision to bf16 (now none): activations take half")
    if config.distributed.strategy == "ddp":
        actions.append("set distributed.strategy to fsdp (now ddp): ranks share the model's states")
    elif config.fsdp.sharding_strategy != "full_shard":
        now = config.fsdp.sharding_strategy
        actions.append(f"set fsdp.sharding_strategy to full_shard (now {now}): ranks share all states")
    return [*actions, "recompute activations in backward"]


def host_bound(context: Context) -> list[str]:
    """Remedies of a GPU that waits for its host."""
    config, actions = context.config, []
    if context.launch_bound:
        if config is not None:
            compiled = "reduce-overhead"
            if not config.compile.enabled or config.compile.mode != compiled:
                actions.append(
                    f"set compile.enabled to true (now {str(config.compile.enabled).lower()}), compile.mode "
                    f"to {compiled} (now {config.compile.mode}): CUDA graphs launch many kernels at once"
                )
            actions.append(
                f"raise training.batch_size (now {config.training.batch_size}): more work a kernel launch"
            )
        return [*actions, "launch fewer, larger kernels: fused or foreach optimizers, fused operations"]
    if config is not None:
        actions.append(
            f"look at the loss less often: training.log_interval (now {config.training.log_interval})"
        )
        actions.append(
            f"match threads to the CPUs of a rank: training.cpu_threads (now {config.training.cpu_threads})"
        )
    return [
        *actions,
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
