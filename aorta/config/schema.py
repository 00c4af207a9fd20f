"""The configuration schema: every key, its type, its bounds and its default.

Defaults are those of the documented `config/default.yaml`; a test holds the two equal. Blocks are frozen; an
unknown key or a wrong type is refused by `aorta.config.load` with its dotted name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from aorta.config.thresholds import Thresholds

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Duration = Annotated[float, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Percent = Annotated[float, Meta(ge=0, le=100)]


class ConfigBlock(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every configuration block."""


class LoggingConfig(ConfigBlock, frozen=True, kw_only=True):
    """Verbosity of the program's own log."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class TrainingConfig(ConfigBlock, frozen=True, kw_only=True):
    """The training loop."""

    epochs: Positive = 1
    batch_size: Positive = 8
    """Samples per rank in one forward pass."""
    gradient_accumulation: Positive = 1
    """Forward passes per optimizer step."""
    mixed_precision: Literal["none", "fp16", "bf16"] = "bf16"
    grad_clip_norm: Duration = 1.0
    """Maximum global gradient norm; 0 switches clipping off."""
    log_interval: Positive = 5
    max_steps: Count = 200
    """Optimizer steps of the whole run; 0 means no limit but `epochs`."""
    checkpoint_interval: Count = 0
    """Epochs between checkpoints of the weights; 0 writes none."""
    output_dir: str = "artifacts"
    """Folder that a run outside the workflow writes to; inside a job the run directory is used."""
    seed: int = 42
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    cpu_threads: Count = 0
    """Threads of each rank's operators on the CPU; 0 leaves it to OMP_NUM_THREADS and torch."""


class OptimizerConfig(ConfigBlock, frozen=True, kw_only=True):
    """AdamW."""

    lr: Annotated[float, Meta(gt=0)] = 3e-4
    weight_decay: Duration = 0.01
    betas: tuple[Ratio, Ratio] = (0.9, 0.98)


class SchedulerConfig(ConfigBlock, frozen=True, kw_only=True):
    """Linear warm-up, then cosine decay, in optimizer steps."""

    warmup_steps: Count = 100
    total_steps: Positive = 2000


class DatasetConfig(ConfigBlock, frozen=True, kw_only=True):
    """Synthetic ranking samples, made from the seed and the sample's index."""

    num_samples: Positive = 10000
    sequence_length: Positive = 64
    dense_dim: Positive = 128
    sparse_features: Positive = 32
    vocab_size: Positive = 60000
    num_dense_features: Positive = 16
    seed: int = 42
    delay_ms: Duration = 0.0
    """Extra time per sample, slept in the loader: a slow data source on demand."""


class DcrnnConfig(ConfigBlock, frozen=True, kw_only=True):
    """Traffic forecasting with diffusion convolutions; in use with `workload: dcrnn`."""

    data: str | None = None
    """HDF5 or npz file of readings, or a folder of train.npz, val.npz and test.npz; null: generated traffic,
    whose seed is `dataset.seed`."""
    adjacency: str | None = None
    """The sensors' graph: pkl, npz, npy or csv; needed with `data`."""
    missing_value: float | None = 0.0
    """Reading that stands for a missing one, beside NaN; null: every number is a reading."""
    num_nodes: Positive | None = None
    """Sensors; null: as many as the data has, 32 of generated ones."""
    num_steps: Positive = 2016
    """Readings of each generated sensor, one in 5 minutes."""
    seq_len: Positive = 12
    """Readings that the model sees."""
    pred_len: Positive = 1
    """Readings that it forecasts."""
    hidden_dim: Positive = 64
    num_layers: Positive = 2
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Between recurrent layers."""
    diffusion_steps: Positive = 2
    """Steps of the random walks in each direction."""
    supports: Literal["dense", "sparse"] = "dense"
    """Storage of the graph's matrices."""
    sampling_decay: Annotated[float, Meta(gt=0)] = 2000.0
    """Decay of scheduled sampling, in batches: the larger, the longer the decoder is shown the truth."""


class ModelConfig(ConfigBlock, frozen=True, kw_only=True):
    """Ranking transformer."""

    vocab_size: Positive = 60000
    embedding_dim: Positive = 192
    num_dense_features: Positive = 16
    dense_dim: Positive = 128
    model_dim: Positive = 768
    num_heads: Positive = 12
    num_layers: Positive = 8
    dropout: Ratio = 0.1
    mlp_hidden_dim: Positive = 2048


class FsdpConfig(ConfigBlock, frozen=True, kw_only=True):
    """Sharded data parallelism; in use with `distributed.strategy: fsdp`."""

    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"] = "full_shard"
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "NONE"] = "BACKWARD_PRE"
    use_orig_params: bool = True
    limit_all_gathers: bool = True
    forward_prefetch: bool = True
    sync_module_states: bool = True
    param_init_device: Literal["cpu", "meta", "cuda"] = "cpu"
    shard_size: Positive | None = None
    """Ranks that share one copy of the weights with `hybrid_shard`; null: the ranks of a node."""


class DistributedConfig(ConfigBlock, frozen=True, kw_only=True):
    """Process group and gradient exchange."""

    strategy: Literal["fsdp", "ddp"] = "fsdp"
    """`fsdp`: each rank keeps a share of weights, gradients and optimizer state; `ddp`: all of them."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    timeout_s: Annotated[float, Meta(gt=0)] = 600.0
    """Longest time that a collective waits for a missing rank."""
    enable_overlap: bool = True
    """False: communication waits for compute, and compute for communication: the serial baseline."""
    overlap_reduce_scatter: bool | None = None
    """For `fsdp`: gradients are reduced while the backward pass goes on; null: as `enable_overlap`."""
    overlap_clone_for_reduce_scatter: bool = False
    """For `fsdp`: a second buffer, so that the next gradients need not wait for the ones on their way."""
    bucket_cap_mb: Annotated[float, Meta(gt=0)] = 25.0
    """For `ddp`: gradients of about this size share an all-reduce."""
    stream_priority: Annotated[int, Meta(ge=-5, le=0)] | None = None
    """CUDA priority of the streams of communication: 0 as compute, -1 before it; null: the strategy's own."""
    env: dict[str, str | int] = field(default_factory=dict)
    """Variables of the communication library (`NCCL_*`, `RCCL_*`, ...), set before it starts."""


class CompileConfig(ConfigBlock, frozen=True, kw_only=True):
    """torch.compile."""

    enabled: bool = False
    backend: str = "inductor"
    mode: str = "max-autotune"
    fullgraph: bool = False
    dynamic: bool = False
    options: dict[str, Any] = field(default_factory=dict)


class DataloaderConfig(ConfigBlock, frozen=True, kw_only=True):
    """Loader workers of each rank."""

    num_workers: Count = 4
    pin_memory: bool = True


class ProfilingConfig(ConfigBlock, frozen=True, kw_only=True):
    """torch.profiler, in steps."""

    enabled: bool = False
    wait: Count = 1
    warmup: Count = 1
    active: Positive = 2
    repeat: Count = 1
    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = False
    with_flops: bool = False
    tensorboard: bool = True
    chrome_trace: bool = False
    trace_filename: str = "trace.json"
    intended_mistakes: list[str] = field(default_factory=list)
    """Ids of mistakes that are intended: they are named as such, and no gain is promised."""


class CaptureConfig(ConfigBlock, frozen=True, kw_only=True):
    """The external profiler around each rank, and the steps that count."""

    profiler: Literal["auto", "none", "nsys", "rocprofv3"] = "auto"
    warmup_steps: Count = 10
    """First steps of a run, kept out of every average: allocation, autotuning, loader start-up."""
    start_step: Count = 20
    """First step inside the profiler's capture range."""
    steps: Positive = 10
    """Length of the capture range in steps."""
    kernel_interval: Count = 0
    """One of this many steps is recorded kernel by kernel inside the training process; 0: none is."""
    detail_interval: Positive | None = None
    """One of this many blocks of 30 steps is timed part by part, the others from end to end. None: 1 on a
    CPU, where timing parts costs nothing; 20 on a GPU.
    """
    keep_environment: bool = False
    """Traces keep all environment variables and command lines, secrets included."""
    gpu_metrics: bool = False
    """nsys on local rank 0 also samples the GPUs' counters, where that is permitted."""


class MonitorConfig(ConfigBlock, frozen=True, kw_only=True):
    """Sidecar samplers on every node."""

    gpu: bool = True
    cpu: bool = True
    interval_s: Annotated[float, Meta(ge=0.1, le=60)] = 1.0
    hang_after_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """Time without a step record after which the ranks' stacks are looked at; 0: never."""
    on_hang: str = ""
    """Command that is run once when the job stands still, such as one that notifies or cancels."""


class ContainerConfig(ConfigBlock, frozen=True, kw_only=True):
    """The container that the ranks of a node run in."""

    image: str | None = None
    """A file, a folder or the name of an image; null: the ranks run on the node itself."""
    runtime: Literal["auto", "pyxis", "apptainer", "charliecloud"] = "auto"
    """`auto` takes the one that is there and fits the image."""
    mounts: list[str] = field(default_factory=list)
    """Further folders that the container sees, such as those of data: SOURCE[:TARGET][:ro]."""


class FaultsConfig(ConfigBlock, frozen=True, kw_only=True):
    """Known bottlenecks, put in on purpose to see whether they are found; all off by default."""

    ranks: list[Count] = field(default_factory=list)
    """Ranks that have the delays and the extra work. Empty means all."""
    start_step: Count = 0
    """First step that has them."""
    loader_delay_ms: Duration = 0.0
    """Slept before each batch, in the loader."""
    host_delay_ms: Duration = 0.0
    """Slept in each step between the batch and the forward pass, in the training process."""
    compute_delay_ms: Duration = 0.0
    """Slept in each forward pass: a device that needs longer, without load on the CPU."""
    compute_matmuls: Count = 0
    """Matrix products of `matmul_size` in each step."""
    matmul_size: Positive = 1024
    tiny_kernels: Count = 0
    """Kernels of one element each in each step."""
    comm_mb: Duration = 0.0
    """MiB of all-reduce more in each step, on all ranks."""
    gpu_memory_ratio: Ratio = 0.0
    """Used over total memory of the GPU, filled up to this at the start."""
    stand_in_ms: Duration = 0.0
    """Slept in each forward pass of every rank, from the first step on: no fault, but a stand-in for a device
    that computes beside the CPU, so that many ranks fit on few cores."""


class Config(ConfigBlock, frozen=True, kw_only=True):
    """The whole configuration."""

    workload: Literal["ranking", "dcrnn"] = "ranking"
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    dcrnn: DcrnnConfig = field(default_factory=DcrnnConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    dataloader: DataloaderConfig = field(default_factory=DataloaderConfig)
    profiling: ProfilingConfig = field(default_factory=ProfilingConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    container: ContainerConfig = field(default_factory=ContainerConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    thresholds: Thresholds = field(default_factory=Thresholds)
