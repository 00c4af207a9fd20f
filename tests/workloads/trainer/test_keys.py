"""What the keys of a configuration change, through the whole of a run of one rank; files of their own have
the keys of sharding, of the exchange of gradients, of profiling and of faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from aorta.config.load import load_config
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.workloads.ranking import Ranking, RankingModel
from aorta.workloads.trainer import data, fsdp
from aorta.workloads.trainer import main as command
from aorta.workloads.trainer.compiled import Compiled
from aorta.workloads.trainer.data import Batches, RankingSamples
from aorta.workloads.trainer.loop import Loop
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.world import World, join
from tests.support.step_records import read_records
from tests.workloads.trainer.tiny import OVERRIDES, tiny

CPU = torch.device("cpu")
ALONE = World(0, 0, 1, 0, CPU, None)
shards = pytest.mark.skipif(not fsdp.ON_CPU, reason=f"torch {torch.__version__} shards on GPUs only")


@pytest.fixture(autouse=True)
def _this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a run does to its process as a whole is not done to this one, or taken back."""
    monkeypatch.setattr(command.StopSignal, "install", lambda self: None)
    for name in ("AORTA_RUN_DIR", "AORTA_PROFILER", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    if dist.is_initialized():  # a run that failed leaves this to the end of its process
        dist.destroy_process_group()


def run(folder: Path, *overrides: str, flags: tuple[str, ...] = ()) -> int:
    """`train.py` with the tiny configuration."""
    arguments = ["--override", *OVERRIDES, f"training.output_dir={folder}", *overrides, *flags]
    return command.run(command.parser().parse_args(arguments))


@contextmanager
def loop(folder: Path, *overrides: str) -> Iterator[Loop]:
    """One that has not begun to train."""
    config = tiny(folder, *overrides)
    with StepRecorder(folder, CPU, capture=config.capture) as recorder:
        observer = Observer(ALONE, 100, recorder.run.metrics_csv)
        yield Loop(config, Ranking(config), ALONE, recorder, observer)


# --- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "max_steps", "expected"),
    [(1, 0, [0] * 4), (2, 0, [0] * 4 + [1] * 4), (2, 6, [0] * 4 + [1] * 2), (9, 3, [0] * 3)],
)
def test_epochs_and_steps_end_a_run(tmp_path: Path, epochs: int, max_steps: int, expected: list[int]) -> None:
    # 16 samples in batches of 4: four steps an epoch
    sizes = ["dataset.num_samples=16", "training.batch_size=4"]
    assert run(tmp_path, *sizes, f"training.epochs={epochs}", f"training.max_steps={max_steps}") == 0
    assert [record.epoch for record in read_records(tmp_path)] == expected


@pytest.mark.parametrize(("interval", "lines"), [(1, 4), (2, 2), (3, 1), (5, 0)])
def test_progress_comes_every_so_many_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, interval: int, lines: int
) -> None:
    with caplog.at_level("INFO"):
        run(tmp_path, "training.max_steps=4", f"training.log_interval={interval}")
    assert sum("samples/s global" in message for message in caplog.messages) == lines


def test_the_seed_chooses_weights_order_and_dropout(tmp_path: Path) -> None:
    def found(name: str, seed: int) -> tuple[float, list[int], int]:
        with loop(tmp_path / name, f"training.seed={seed}") as made:
            # of the rank's own dropout
            dropout = torch.initial_seed()
            weights = sum(value.double().sum().item() for value in made._model.module.parameters())
            order = next(iter(Batches(Numbers(), tiny(tmp_path, f"training.seed={seed}"), ALONE).epoch(0)))
        return weights, order["index"].tolist(), dropout

    first, again, other = found("a", 1), found("b", 1), found("c", 2)
    assert first == again
    assert first[2] == 1 + 1 + 0  # seed, one on, and the rank
    assert [one != two for one, two in zip(first, other, strict=True)] == [True] * 3


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Every sample is its index."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"index": torch.tensor(index)}


def test_threads_and_the_level_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    levels: list[str] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(command.logging, "basicConfig", lambda **given: levels.append(given["level"]))
    run(tmp_path, "training.cpu_threads=3", "logging.level=ERROR", "training.max_steps=1")
    run(tmp_path, "training.cpu_threads=0", "training.max_steps=1")
    assert (threads, levels) == ([3], ["ERROR", "INFO"])


def test_a_profile_that_cannot_be_made_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_steps is 4, but the first recorded step"):
        run(tmp_path, "profiling.enabled=true", "capture.warmup_steps=10")
    assert list(tmp_path.iterdir()) == []


# --- optimizer, scheduler ----------------------------------------------------------------------------------


def test_the_rate_rises_and_falls_by_the_schedule(tmp_path: Path) -> None:
    shape = ["optimizer.lr=1.0", "scheduler.warmup_steps=2", "scheduler.total_steps=4"]
    run(tmp_path, *shape, "training.max_steps=5")
    # 1/2 and 2/2 of the warm-up, then the cosine from 1 over a half to 0
    assert [record.lr for record in read_records(tmp_path)] == pytest.approx([0.5, 1, 1, 0.5, 0])


# --- dataset, model, loader --------------------------------------------------------------------------------


def test_the_size_of_the_dataset(tmp_path: Path) -> None:
    assert len(RankingSamples(tiny(tmp_path, "dataset.num_samples=17").dataset)) == 17


def test_every_size_of_the_model(tmp_path: Path) -> None:
    sizes = {"vocab_size": 53, "embedding_dim": 3, "num_dense_features": 5, "dense_dim": 7, "model_dim": 12}
    sizes |= {"num_heads": 4, "num_layers": 3, "mlp_hidden_dim": 11}
    data_sizes = ["dataset.num_dense_features=5", "dataset.dense_dim=7", "dataset.sequence_length=6"]
    settings = [f"model.{key}={value}" for key, value in sizes.items()]
    config = tiny(tmp_path, *settings, *data_sizes, "dataset.sparse_features=9", "model.dropout=0.25")
    model = Ranking(config).model()
    assert isinstance(model, RankingModel)
    layers = list(model.encoder.layers)
    assert len(layers) == 3
    assert {name: tuple(value.shape) for name, value in model.named_parameters() if "layers" not in name} == {
        "embedding.weight": (53, 3), "field": (9, 3), "item.weight": (12, 3), "item.bias": (12,),
        "context.weight": (12, 3), "context.bias": (12,), "dense.0.weight": (12, 7), "dense.0.bias": (12,),
        "dense.2.weight": (12, 12), "dense.2.bias": (12,), "feature": (5, 1), "position": (6, 12),
        "norm.weight": (12,), "norm.bias": (12,), "head.weight": (1, 12), "head.bias": (1,),
    }  # fmt: skip
    for layer in layers:
        assert layer.self_attn.num_heads == 4
        assert tuple(layer.linear1.weight.shape) == (11, 12)
        rates = {part.p for part in layer.modules() if isinstance(part, nn.Dropout)}
        assert rates | {layer.self_attn.dropout} == {0.25}


@pytest.mark.parametrize(
    ("pin", "device", "pinned"), [(True, "cuda", True), (False, "cuda", False), (True, "cpu", False)]
)
def test_memory_is_pinned_where_asked_for_and_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: bool, device: str, pinned: bool
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(data, "DataLoader", lambda dataset, **others: given.update(others))
    config = tiny(
        tmp_path, f"dataloader.pin_memory={pin}", "dataloader.num_workers=2", "training.batch_size=3"
    )
    Batches(Numbers(), config, World(0, 0, 1, 0, torch.device(device), None))
    assert (given["pin_memory"], given["num_workers"], given["batch_size"]) == (pinned, 2, 3)


# --- distributed -------------------------------------------------------------------------------------------


def test_a_device_and_a_backend_that_are_not_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for override, message in (
        ("training.device=cuda", "training.device is 'cuda'"),
        ("distributed.backend=nccl", "distributed.backend is 'nccl'"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(tmp_path, override)


def test_training_stays_on_the_cpu_where_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with join(tiny(tmp_path, "training.device=cpu")) as world:
        assert world.device == CPU


def test_variables_of_the_library_are_set_before_it_starts_and_kept_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("RCCL_MSCCL_ENABLE", "1")  # is taken back at the end, whatever the run sets
    monkeypatch.delenv("RCCL_MSCCL_ENABLE")
    seen: dict[str, str | None] = {}
    timeouts: list[float] = []

    def started(backend: str, **given: Any) -> None:
        seen.update({name: os.environ.get(name) for name in ("NCCL_DEBUG", "RCCL_MSCCL_ENABLE")})
        timeouts.append(given["timeout"].total_seconds())

    monkeypatch.setattr(dist, "init_process_group", started)
    env = ["distributed.env={NCCL_DEBUG: WARN, RCCL_MSCCL_ENABLE: 0}", "distributed.timeout_s=77"]
    with caplog.at_level("INFO"), join(tiny(tmp_path / "x", *env, "distributed.strategy=fsdp")):
        pass
    assert (seen, timeouts) == ({"NCCL_DEBUG": "WARN", "RCCL_MSCCL_ENABLE": "0"}, [77])
    assert "NCCL_DEBUG was 'INFO' in the environment; distributed.env sets it to 'WARN'" in caplog.text
    run(tmp_path / "kept", *env)
    assert load_config(tmp_path / "kept" / "config.yaml").distributed.env == {
        "NCCL_DEBUG": "WARN",
        "RCCL_MSCCL_ENABLE": 0,
    }
    with pytest.raises(ConfigError, match=r"distributed\.env\.LD_PRELOAD: not a variable of"):
        run(tmp_path / "other", "distributed.env={LD_PRELOAD: x}")


@pytest.mark.parametrize(("override", "priority"), [("null", None), ("-1", -1), ("0", 0)])
def test_the_recorder_gets_the_priority_of_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, priority: int | None
) -> None:
    given: list[int | None] = []

    class Noted(StepRecorder):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            given.append(named["stream_priority"])
            super().__init__(*arguments, **named)

    monkeypatch.setattr(command, "StepRecorder", Noted)
    run(tmp_path, f"distributed.stream_priority={override}", "training.max_steps=1")
    assert given == [priority]


@shards
@pytest.mark.parametrize(
    ("settings", "gather", "scatter"),
    [
        ([], True, True),
        (["enable_overlap=false"], False, False),
        (["overlap_reduce_scatter=false"], True, False),
        (["overlap_reduce_scatter=true"], True, True),
    ],
)
def test_which_collectives_of_sharding_may_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], gather: bool, scatter: bool
) -> None:
    given: dict[str, bool] = {}
    monkeypatch.setattr(StepRecorder, "observe_fsdp", lambda self, model, **how: given.update(how))
    keys = ["distributed.strategy=fsdp", *(f"distributed.{item}" for item in settings)]
    with join(tiny(tmp_path, *keys)), loop(tmp_path, *keys):
        pass
    assert (given["overlap_gather"], given["overlap_scatter"]) == (gather, scatter)


@shards
@pytest.mark.parametrize("wanted", [True, False])
def test_gradients_on_their_way_have_a_second_buffer_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    given: list[int] = []
    monkeypatch.setattr(
        fsdp.FSDPModule, fsdp.TWO_BUFFERS, lambda self, count: given.append(count), raising=False
    )
    keys = ["distributed.strategy=fsdp", f"distributed.overlap_clone_for_reduce_scatter={wanted}"]
    with join(tiny(tmp_path, *keys)), loop(tmp_path, *keys):
        pass
    assert given == [2] * wanted


@shards
def test_weights_are_not_made_on_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    keys = ["distributed.strategy=fsdp", "fsdp.param_init_device=cuda", "training.device=cpu"]
    with pytest.raises(ConfigError, match=r"fsdp\.param_init_device is 'cuda', but training is on the CPU"):
        run(tmp_path, *keys)


# --- compile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=shards)])
def test_a_model_is_compiled_where_that_is_switched_on(tmp_path: Path, enabled: bool, strategy: str) -> None:
    settings = [f"compile.enabled={enabled}", "compile.backend=eager", f"distributed.strategy={strategy}"]
    with join(tiny(tmp_path / "x", *settings)), loop(tmp_path, *settings) as made:
        assert isinstance(made._model._call, Compiled) is enabled  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"backend": "inductor", "mode": "max-autotune", "options": None}),
        ([], {"fullgraph": False, "dynamic": False}),
        (["mode=reduce-overhead"], {"mode": "reduce-overhead"}),
        (["backend=aot_eager", "mode=reduce-overhead"], {"backend": "aot_eager", "mode": None}),
        (["fullgraph=true"], {"fullgraph": True}),
        (["dynamic=true"], {"dynamic": True}),
        # torch takes either
        (["options={max_autotune: true}"], {"options": {"max_autotune": True}, "mode": None}),
    ],
)  # fmt: skip
def test_what_the_compiler_is_told(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], expected: dict[str, Any]
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda module, **others: given.update(others))
    Compiled(nn.Identity(), load_config(None, [f"compile.{item}" for item in overrides]).compile)
    assert {key: given[key] for key in expected} == expected


@pytest.mark.parametrize(("enabled", "first"), [(True, "warmup"), (False, "steady")])
def test_the_step_that_compiles_is_no_steady_one(tmp_path: Path, enabled: bool, first: str) -> None:
    settings = ["capture.warmup_steps=0", f"compile.enabled={enabled}", "compile.backend=eager"]
    run(tmp_path, *settings, "training.max_steps=3")
    assert [record.phase for record in read_records(tmp_path)] == [first, "steady", "steady"]


# --- ROCm --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "backend"), [([], "aot_eager"), (["compile.backend=inductor"], "inductor")]
)
def test_on_rocm_the_run_is_of_the_adapted_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: list[str], backend: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    run(tmp_path, *override, "profiling.chrome_trace=true", "training.max_steps=1")
    kept = load_config(tmp_path / "config.yaml")
    assert (kept.compile.backend, kept.profiling.chrome_trace) == (backend, False)


def test_what_the_smi_tool_says_stands_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, float]] = []

    class Tool:
        def take(self) -> str:
            return "busy 42 %"

    @contextmanager
    def sampled(wanted: bool, local_rank: int, interval_s: float) -> Iterator[Tool | None]:
        asked.append((wanted, interval_s))
        yield Tool() if wanted else None

    monkeypatch.setattr(command, "sampled", sampled)
    run(tmp_path / "on", "monitor.interval_s=7", flags=("--enable-rocm-metrics",))
    run(tmp_path / "off")
    assert asked == [(True, 7.0), (False, 1.0)]
    assert {record.rocm_smi_output for record in read_records(tmp_path / "on")} == {"busy 42 %"}
    assert {record.rocm_smi_output for record in read_records(tmp_path / "off")} == {None}
