"""FSDP2 on real ranks under torchrun: numerics against DDP, and what each key does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aorta.config.load import load_config
from aorta.config.schema import Config, FsdpConfig
from aorta.errors import ConfigError
from aorta.workloads.trainer import fsdp
from aorta.workloads.trainer.fsdp import check_fsdp, shard_ranks
from aorta.workloads.trainer.parallel import check_strategy
from aorta.workloads.trainer.world import World
from tests.workloads.trainer.test_ranks import run_to_end, torchrun

Found = list[dict[str, Any]]
STEPS = 4


def launch(folder: Path, ranks: int, *names: str) -> Found:
    if not fsdp.ON_CPU:
        pytest.skip(f"torch {torch.__version__} shards on GPUs only")
    command = torchrun("-m", "tests.workloads.trainer.sharded_ranks", str(folder), *names, ranks=ranks)
    run_to_end(command, folder)
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What both ranks found, by rank."""
    return launch(tmp_path_factory.mktemp("sharded"), 2)


def test_sharding_trains_like_ddp(found: Found) -> None:
    for rank in found:
        for run in ("full", "keep", "none", "meta", "late", "serial"):
            assert rank[run]["loss"] == pytest.approx(rank["ddp"]["loss"], rel=1e-6)
            assert rank[run]["norm"] == pytest.approx(rank["ddp"]["norm"], rel=1e-5)
            assert rank[run]["state"] == pytest.approx(rank["ddp"]["state"], rel=1e-5, abs=1e-5)


def test_the_same_seed_gives_the_same_run(found: Found) -> None:
    assert found[0]["full"]["loss"] == found[0]["again"]["loss"]
    assert found[0]["full"]["weights"] == found[0]["again"]["weights"]
    assert found[0]["full"]["weights"][0] == found[1]["full"]["weights"][1]


def test_the_norm_is_that_of_the_whole_model(found: Found) -> None:
    for run in ("full", "bf16", "fp16"):
        assert found[0][run]["norm"] == found[1][run]["norm"]
    assert found[0]["unclipped"]["norm"] == [None] * STEPS


@pytest.mark.parametrize(
    ("run", "collectives"),
    [
        # the rest of the model is gathered once, each of two layers again for its backward pass
        ("full", {"allgather": 1 + 2 + 2, "reducescatter": 3, "allreduce": 1}),
        ("keep", {"allgather": 1 + 2, "reducescatter": 3, "allreduce": 1}),
        ("none", {"allreduce": 3}),
        ("ddp", {"allreduce": 1}),
        # two passes, gradients once
        ("parts", {"allgather": 2 * (1 + 2 + 2), "reducescatter": 3, "allreduce": 1}),
        ("unclipped", {"allgather": 1 + 2 + 2, "reducescatter": 3}),
        # one more all-reduce, for the overflow
        ("fp16", {"allgather": 1 + 2 + 2, "reducescatter": 3, "allreduce": 2}),
    ],
)
def test_every_collective_of_a_step_is_timed(found: Found, run: str, collectives: dict[str, int]) -> None:
    for rank in found:
        assert rank[run]["streams"][-1] == collectives
        assert rank[run]["exact"]


def test_accumulation_gives_the_gradient_of_the_whole_batch(found: Found) -> None:
    assert found[0]["parts"]["loss"] == pytest.approx(found[0]["full"]["loss"], rel=1e-5)
    assert found[0]["parts"]["norm"] == pytest.approx(found[0]["full"]["norm"], rel=1e-4)


def test_half_precision_halves_the_gathered_bytes_and_trains(found: Found) -> None:
    for run in ("bf16", "fp16"):
        assert found[0][run]["bytes"][-1] * 2 == found[0]["full"]["bytes"][-1]
        assert found[0][run]["loss"] != found[0]["full"]["loss"]
        assert found[0][run]["loss"] == pytest.approx(found[0]["full"]["loss"], rel=0.02)
    assert found[0]["ddp_bf16"]["loss"] == pytest.approx(found[0]["bf16"]["loss"], rel=0.02)


AHEAD_FORWARD = [*["gather"] * 3, "forward 0", "forward 1"]
LATE_FORWARD = ["gather", "gather", "forward 0", "gather", "forward 1"]
AHEAD_BACKWARD = ["gather", "gather", "backward 1", "backward 0"]
LATE_BACKWARD = ["gather", "backward 1", "gather", "backward 0"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("order", AHEAD_FORWARD + AHEAD_BACKWARD),
        ("order_forward", LATE_FORWARD + AHEAD_BACKWARD),
        ("order_backward", AHEAD_FORWARD + LATE_BACKWARD),
        ("order_late", LATE_FORWARD + LATE_BACKWARD),
        ("order_serial", LATE_FORWARD + LATE_BACKWARD),
    ],
)
def test_weights_are_asked_for_ahead_or_not(found: Found, name: str, expected: list[str]) -> None:
    assert ["gather" if item.startswith("gather") else item for item in found[0][name]] == expected


def test_with_meta_only_rank_0_makes_weights(found: Found) -> None:
    assert [rank["made_cpu"] for rank in found] == [["cpu"], ["cpu"]]
    assert [rank["made_meta"] for rank in found] == [["cpu", "meta"], ["meta"]]


def test_all_ranks_start_with_the_weights_of_rank_0(found: Found) -> None:
    assert found[0]["start"] == found[0]["rank0"]
    assert found[0]["apart"] != found[0]["rank0"]


def test_compiling_a_sharded_model_changes_nothing(found: Found) -> None:
    assert found[0]["compiled"]["loss"] == pytest.approx(found[0]["full"]["loss"][:2], rel=1e-5)


def test_the_moments_in_which_compute_may_wait_surround_fsdp2s_own_hooks(found: Found) -> None:
    layer = "TransformerEncoderLayer"
    expected = [
        [what, "forward", name] for name in ("RankingModel", layer, layer) for what in ("open", "close")
    ]
    backward = [["open", "backward", layer], ["close", "backward", layer], ["computed", "backward", ""]]
    assert found[0]["moments"] == expected + backward + backward
    for run, usual in (("watched", "full"), ("watched_compiled", "compiled")):
        assert found[0][run]["loss"] == pytest.approx(found[0][usual]["loss"], rel=1e-6)
        assert found[0][run]["exact"]


def test_a_programs_own_calls_are_timed_and_left_as_they_were(found: Found) -> None:
    for rank in found:
        own = rank["own"]
        assert own["untouched"]
        assert own["untimed"] == [{}, {}]
        # in the second step: 0 + 1, then doubled; and once more outside
        assert own["value"] == (0 + 1) * 2 * 2
        for index, ranges in enumerate(own["ranges"]):
            first = 3 * index + 1
            assert ranges == [
                ["allgather", "all_gather", first + 2, 2 * 4000],
                ["allreduce", "all_reduce", first, 4000],
                ["allreduce", "all_reduce", first + 1, 4000],
            ]
        assert min(own["comm"]) > 0


def test_hybrid_sharding_over_four_ranks(tmp_path: Path) -> None:
    found = launch(tmp_path, 4, "ddp", "hybrid")
    for rank in found:
        assert rank["hybrid"]["loss"] == pytest.approx(rank["ddp"]["loss"], rel=1e-5)
        # The attention's key bias has no gradient but rounding errors, which AdamW makes steps of.
        assert rank["hybrid"]["state"] == pytest.approx(rank["ddp"]["state"], rel=1e-4, abs=1e-3)
        # each reduce-scatter in a pair is followed by an all-reduce between the pairs; one for the norm
        assert rank["hybrid"]["streams"][-1] == {"allgather": 5, "reducescatter": 3, "allreduce": 3 + 1}
    assert len({rank["hybrid"]["weights"][0] for rank in found}) == 1


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("fsdp.backward_prefetch=BACKWARD_POST", "cannot prefetch weights after a block's backward pass"),
        ("fsdp.use_orig_params=false", "always keeps"),
        ("fsdp.limit_all_gathers=false", "always limits"),
        ("fsdp.shard_size=2", "is not 'hybrid_shard'"),
    ],
)
def test_what_fsdp2_does_not_have_is_refused_with_the_reason(override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_fsdp(load_config(None, [override]))


def test_combinations_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigError, match="only rank 0 creates the weights"):
        check_fsdp(load_config(None, ["fsdp.param_init_device=meta", "fsdp.sync_module_states=false"]))
    overlap = ["distributed.enable_overlap=false", "distributed.overlap_reduce_scatter=true"]
    with pytest.raises(ConfigError, match="enable_overlap is false"):
        check_fsdp(load_config(None, overlap))
    check_fsdp(Config())


def test_a_second_buffer_needs_a_torch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["distributed.overlap_clone_for_reduce_scatter=true"])
    monkeypatch.setattr(fsdp, "TWO_BUFFERS", "set_something_newer")
    with pytest.raises(ConfigError, match="keeps one buffer"):
        check_fsdp(config)
    monkeypatch.setattr(fsdp, "TWO_BUFFERS", "reshard")  # a method that every version has
    check_fsdp(config)


def test_ranks_that_share_a_copy() -> None:
    assert shard_ranks(FsdpConfig(), 8, 4) == 8
    assert shard_ranks(FsdpConfig(sharding_strategy="hybrid_shard"), 8, 4) == 4
    assert shard_ranks(FsdpConfig(sharding_strategy="hybrid_shard", shard_size=2), 8, 4) == 2
    assert shard_ranks(FsdpConfig(sharding_strategy="no_shard"), 8, 4) == 1
    with pytest.raises(ConfigError, match="8 ranks cannot be divided"):
        shard_ranks(FsdpConfig(sharding_strategy="hybrid_shard", shard_size=3), 8, 4)


def test_a_key_of_the_other_strategy_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        check_strategy(load_config(None, ["distributed.bucket_cap_mb=1"]), rank=0)
    assert caplog.messages == [
        "strategy: fsdp",
        "strategy fsdp ignores these keys: distributed.bucket_cap_mb=1.0",
    ]


def test_a_torch_that_cannot_shard_on_the_cpu_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp, "ON_CPU", False)
    with pytest.raises(ConfigError, match=r"'fsdp' on the CPU: torch .* shards on GPUs only"):
        fsdp.make_mesh(FsdpConfig(), World(0, 0, 1, 0, torch.device("cpu"), None))
