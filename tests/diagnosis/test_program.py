"""What must be the same for runs to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.records import GpuInfo, Manifest
from aorta.config.schema import (
    CompileConfig,
    Config,
    DatasetConfig,
    DcrnnConfig,
    DistributedConfig,
    FaultsConfig,
    ModelConfig,
    TrainingConfig,
)
from aorta.diagnosis.program import program, settings
from tests.support.synthetic import RunSpec, write_run


def manifest(tmp_path: Path, *command: str, **spec: Any) -> Manifest:
    """Of a run of `command`; without one, of the trainer."""
    run = write_run(tmp_path / str(len(list(tmp_path.iterdir()))), RunSpec(steps=2, **spec))
    whole = read_json(run.manifest, Manifest)
    if not command:
        return whole
    plan = msgspec.structs.replace(whole.plan, command=list(command), workload=None)
    return msgspec.structs.replace(whole, plan=plan)


def test_the_trainer_is_one_program_wherever_its_run_is(tmp_path: Path) -> None:
    one = program(manifest(tmp_path, nodes=1))
    assert one == "aorta.train (ranking)"
    assert program(manifest(tmp_path, nodes=2)) == one
    assert program(None) is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/opt/venv/bin/python3.11", "-u", "bench.py", "--width", "64"], "bench.py --width 64"),
        (["python", "bench.py", "--batch-size", "64", "--lr", "1e-3"], "bench.py --batch-size * --lr 1e-3"),
        (
            ["python", "-m", "pkg.bench", "--max_steps=9", "--steps", "all"],
            "-m pkg.bench --max_steps=* --steps all",
        ),
        (["/opt/bench.py", "--out", "/tmp/x", "--log=./y", "a/b"], "/opt/bench.py --out * --log=* a/b"),
        (["bash", "./a.sh", "./data"], "bash ./a.sh *"),
        (["./bench", "--out=/r/1node/run_101/logs", "--net", "big"], "./bench --out=*/logs --net big"),
        (
            ["bench.py", "name:/r/1node/run_101/x", "other:/r/1node/run_1011"],
            "bench.py */x other:/r/1node/run_1011",
        ),
    ],
)
def test_a_command_without_interpreter_lengths_and_paths(
    tmp_path: Path, command: list[str], words: str
) -> None:
    assert program(manifest(tmp_path, *command)) == words


def changed(tmp_path: Path, config: Config, device: str = "cpu") -> set[str]:
    """Keys that differ from those of the default configuration with `ddp`."""
    of = manifest(tmp_path)
    base, other = settings(of, DDP, "cpu"), settings(of, config, device)
    assert base is not None
    assert other is not None
    return {key for key in base | other if base.get(key, "absent") != other.get(key, "absent")}


DDP = Config(distributed=DistributedConfig(strategy="ddp"))


@pytest.mark.parametrize(
    ("blocks", "keys"),
    [
        ({}, set()),
        ({"model": ModelConfig(num_layers=3)}, {"model.num_layers"}),
        ({"dataset": DatasetConfig(sequence_length=8)}, {"dataset.sequence_length"}),
        ({"dataset": DatasetConfig(delay_ms=9, num_samples=3, seed=1)}, set()),
        ({"training": TrainingConfig(mixed_precision="none")}, {"training.mixed_precision"}),
        (
            {"training": TrainingConfig(batch_size=3, max_steps=9, gradient_accumulation=2, device="cpu")},
            set(),
        ),
        ({"faults": FaultsConfig(host_delay_ms=9)}, set()),
        ({"distributed": DistributedConfig(strategy="ddp", bucket_cap_mb=1)}, {"distributed.bucket_cap_mb"}),
        (
            {"distributed": DistributedConfig(strategy="ddp", env={"NCCL_ALGO": "Ring"})},
            {"distributed.env.NCCL_ALGO"},
        ),
        ({"compile": CompileConfig(mode="default")}, set()),
        ({"dcrnn": DcrnnConfig(hidden_dim=3)}, set()),
    ],
)
def test_which_keys_must_be_the_same(tmp_path: Path, blocks: dict[str, Any], keys: set[str]) -> None:
    assert changed(tmp_path, msgspec.structs.replace(DDP, **blocks)) == keys


def test_what_is_in_use_counts(tmp_path: Path) -> None:
    compiled = changed(tmp_path, msgspec.structs.replace(DDP, compile=CompileConfig(enabled=True)))
    assert {"compile.enabled", "compile.mode"} <= compiled
    sharded = changed(tmp_path, msgspec.structs.replace(DDP, distributed=DistributedConfig(strategy="fsdp")))
    assert {"distributed.strategy", "fsdp.sharding_strategy", "distributed.bucket_cap_mb"} <= sharded


def test_data_is_compared_by_name(tmp_path: Path) -> None:
    def data(path: str | None) -> object:
        config = msgspec.structs.replace(DDP, workload="dcrnn", dcrnn=DcrnnConfig(data=path))
        found = settings(manifest(tmp_path), config, "cpu")
        assert found is not None
        assert not any(key.startswith("model.") for key in found)
        return found["dcrnn.data"]

    assert data("/a/metr.h5") == data("b/metr.h5") == "metr.h5"
    assert data(None) is None


def test_the_device_and_its_name_count_and_no_configuration_does_for_a_users_program(tmp_path: Path) -> None:
    own = manifest(tmp_path, "bench.py")
    gpu = GpuInfo(index=0, uuid="GPU-0", name="H100")
    nodes = [msgspec.structs.replace(node, gpus=[gpu, gpu]) for node in own.nodes]
    with_gpus = msgspec.structs.replace(own, nodes=nodes)
    assert settings(with_gpus, None, "cuda") == {"device": "cuda (H100)"}
    assert settings(with_gpus, None, "cpu") == {"device": "cpu"}
    assert settings(own, None, "cuda") == {"device": "cuda"}


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    trainer = manifest(tmp_path)
    assert settings(trainer, DDP, "cpu") is not None
    assert settings(None, DDP, "cpu") is None
    assert settings(trainer, None, "cpu") is None
    assert settings(trainer, DDP, None) is None
