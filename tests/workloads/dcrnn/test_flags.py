"""The documented flags set keys of the configuration, and nothing is silently ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.config.load import load_config
from aorta.config.schema import Config
from aorta.errors import ConfigError
from aorta.workloads.dcrnn.flags import check_flags, flag_overrides
from aorta.workloads.trainer.main import main, parser

CONFIG = Path(__file__).parents[3] / "config" / "dcrnn.yaml"


def read(*arguments: str) -> Config:
    flags = parser().parse_args(arguments)
    config = load_config(flags.config, [*flag_overrides(flags), *flags.override])
    check_flags(flags, config)
    return config


def test_every_flag_sets_its_key() -> None:
    line = (
        "--data d --num-nodes 7 --seq-len 6 --pred-len 3 --num-workers 1 --epochs 5 --batch-size 9 --lr 3e-4"
        " --weight-decay 0.5 --precision bf16 --seed 11 --hidden-dim 13 --num-layers 4 --dropout 0.25"
        " --results out --checkpoint-interval 2 --monitor-gpu --monitor-cpu"
    )
    config = read("--config", str(CONFIG), *line.split())
    chosen, training = config.dcrnn, config.training
    assert (chosen.data, chosen.num_nodes, chosen.seq_len, chosen.pred_len) == ("d", 7, 6, 3)
    assert (chosen.hidden_dim, chosen.num_layers, chosen.dropout) == (13, 4, 0.25)
    assert (training.epochs, training.batch_size, training.mixed_precision) == (5, 9, "bf16")
    assert (training.seed, training.output_dir, training.checkpoint_interval) == (11, "out", 2)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (3e-4, 0.5)
    assert config.dataloader.num_workers == 1


def test_without_a_file_the_documented_values_hold() -> None:
    config = read("--epochs", "3")
    assert config.workload == "dcrnn"
    chosen, training = config.dcrnn, config.training
    assert (chosen.seq_len, chosen.pred_len, chosen.hidden_dim, chosen.num_layers) == (12, 1, 64, 2)
    assert (chosen.dropout, config.dataloader.num_workers, training.seed) == (0.1, 4, 42)
    assert (training.batch_size, training.mixed_precision, training.epochs) == (32, "none", 3)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (1e-3, 1e-5)
    assert training.max_steps == 0


def test_with_a_file_only_what_is_given_changes() -> None:
    assert read("--config", str(CONFIG)) == load_config(CONFIG)
    changed = read("--config", str(CONFIG), "--precision", "fp32", "--seed", "1")
    assert changed == load_config(CONFIG, ["training.mixed_precision=none", "training.seed=1"])


def test_without_flags_nothing_is_chosen() -> None:
    assert read() == Config()
    assert read("--monitor-cpu") == Config()


def test_an_override_wins_over_a_flag() -> None:
    assert read("--epochs", "3", "--override", "training.epochs=4").training.epochs == 4


def test_a_path_with_signs_of_the_override_grammar_stays_a_path() -> None:
    for path in ("a=b.h5", "1e3", "null", "[x]", "it's: {a}"):
        config = read("--data", path, "--results", path)
        assert (config.dcrnn.data, config.training.output_dir) == (path, path)


def test_another_workload_refuses_them() -> None:
    with pytest.raises(ConfigError, match=r"--seq-len is a flag of workload dcrnn.*ranking"):
        read("--seq-len", "3", "--override", "workload=ranking")


def test_a_value_out_of_bounds_is_named_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--dropout", "1.5"]) == 2
    assert "dcrnn.dropout is 1.5" in capfd.readouterr().err
