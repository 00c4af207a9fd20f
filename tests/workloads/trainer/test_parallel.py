from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aorta.config.schema import CompileConfig, Config, DistributedConfig, FsdpConfig
from aorta.errors import ConfigError
from aorta.workloads.trainer.compiled import Compiled
from aorta.workloads.trainer.parallel import check_strategy


@pytest.mark.parametrize("key", ["overlap_reduce_scatter", "overlap_clone_for_reduce_scatter"])
def test_switches_of_sharded_training_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"distributed.{key} is true"):
        check_strategy(Config(distributed=DistributedConfig(strategy="ddp", **{key: True})), rank=0)


def test_keys_that_are_not_in_use_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    ddp = DistributedConfig(strategy="ddp")
    config = Config(distributed=ddp, fsdp=FsdpConfig(forward_prefetch=False, param_init_device="meta"))
    with caplog.at_level("INFO"):
        check_strategy(config, rank=0)
        check_strategy(config, rank=1)
        check_strategy(Config(distributed=ddp), rank=0)
    assert [record.message for record in caplog.records] == [
        "strategy: ddp",
        "strategy ddp ignores these keys: fsdp.forward_prefetch=False, fsdp.param_init_device=meta",
        "strategy: ddp",
    ]


class Double(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["x"] * 2


def test_compiled_gives_the_same(tmp_path: Path) -> None:
    call = Compiled(Double(), CompileConfig(enabled=True, backend="eager"))
    assert call({"x": torch.tensor([1.0])}).tolist() == [2.0]
    assert call({"x": torch.tensor([3.0])}).tolist() == [6.0]


def test_a_compiler_that_fails_is_left_out_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    def broken(graph: object, inputs: object) -> None:
        raise RuntimeError("no compiler here")

    call = Compiled(Double(), CompileConfig(enabled=True, backend=broken))  # type: ignore[arg-type]
    assert call({"x": torch.tensor([1.0])}).tolist() == [2.0]
    assert call({"x": torch.tensor([1.0])}).tolist() == [2.0]
    (line,) = [record for record in caplog.records if record.name == "aorta.workloads.trainer.compiled"]
    assert "training goes on without it" in line.message
    assert "no compiler here" in line.message
