"""The command line: documented flags, defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.errors import ConfigError
from aorta.workloads.ddp_benchmark.model import parameter_count
from aorta.workloads.ddp_benchmark.options import IMPLEMENTATIONS, BenchmarkOptions, parse


def test_the_defaults_are_the_documented_ones() -> None:
    options = parse([])
    assert options == BenchmarkOptions()
    sizes = (options.batch_size, options.vocab_size, options.context_length, options.d_model)
    assert sizes == (32, 10_000, 512, 768)
    assert (options.num_layers, options.num_heads, options.d_ff, options.rope_theta) == (12, 12, 3072, 1e4)
    assert (options.num_epochs, options.warmup_epochs, options.bucket_size_mb) == (10, 3, 100.0)
    assert options.implementations == IMPLEMENTATIONS


@pytest.mark.parametrize(
    "line",
    [
        "--profile",
        "--profile --profile-implementation ddp_bucketed",
        "--profile --profile-output-dir ./my_traces",
        "--profile --profile-implementation ddp_individual_v2 --d-model 512 --num-layers 8 --num-heads 8"
        " --batch-size 16 --num-epochs 3 --warmup-epochs 1",
        "--profile --profile-implementation ddp_bucketed --d-model 1024 --num-layers 24 --num-heads 16"
        " --batch-size 64 --bucket-size-mb 1000 --num-epochs 5 --warmup-epochs 2",
        "--profile --num-epochs 3 --warmup-epochs 1",
        "--profile --profile-implementation ddp --profile-output-dir ./traces/ddp",
        "--vocab-size 10 --context-length 4 --d-ff 8 --rope-theta 100",
    ],
)
def test_documented_command_lines_are_taken(line: str) -> None:
    parse(line.split())


def test_profile_mode_traces_the_basic_implementation_for_few_steps() -> None:
    options = parse(["--profile"])
    assert (options.profile_implementation, options.profile_output_dir) == ("ddp", Path("profiler_output"))
    assert (options.steps_per_epoch, parse([]).steps_per_epoch) == (2, 10)


def test_single_flags_count_over_a_preset() -> None:
    options = parse(["--d-model", "128", "--preset", "small"])
    assert (options.d_model, options.num_layers) == (128, 2)
    assert parameter_count(options) < 1_000_000


def test_implementations_keep_their_order_and_come_once() -> None:
    options = parse(["--implementations", "torch_ddp", "ddp", "ddp"])
    assert options.implementations == ("ddp", "torch_ddp")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--batch-size 0", "--batch-size is 0: must be above 0"),
        ("--bucket-size-mb -1", "--bucket-size-mb is -1.0: must be above 0"),
        ("--warmup-epochs -1", "--warmup-epochs is -1: must not be negative"),
        ("--nproc 0", "--nproc is 0: must be above 0"),
        ("--d-model 20 --num-heads 4", "--d-model is 20: not a multiple of 2 × --num-heads = 8"),
        (
            "--num-epochs 3",
            "no step is left to measure: 3 epochs × 10 steps, of which the first 30 are warm-up",
        ),
        ("--num-epochs 1 --warmup-epochs 0 --steps-per-epoch 2", "of which the first 2 are warm-up"),
    ],
)
def test_what_cannot_work_is_refused_with_its_flag(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(line.split())
    assert said in caught.value.message


def test_profile_mode_may_be_all_warm_up() -> None:
    assert parse(["--profile", "--num-epochs", "3"]).warmup_epochs == 3
