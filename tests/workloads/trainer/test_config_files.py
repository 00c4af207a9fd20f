"""The committed configuration files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from aorta.config.load import load_config
from aorta.config.schema import Config
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer.data import check_size

FOLDER = Path(__file__).parents[3] / "config"


def test_the_default_file_holds_every_key_at_its_default() -> None:
    path = FOLDER / "default.yaml"
    assert load_config(path) == Config()
    written = yaml.safe_load(path.read_text())
    expected = msgspec.to_builtins(Config())
    assert {key: set(value) for key, value in written.items() if isinstance(value, dict)} == {
        key: set(value) for key, value in expected.items() if isinstance(value, dict)
    }


def test_the_small_file_trains_on_four_ranks_to_its_last_step() -> None:
    config = load_config(FOLDER / "small.yaml")
    Ranking(config)
    check_size(config, 4)
    rounds = config.dataset.num_samples // 4 // config.training.batch_size
    assert rounds * config.training.epochs >= config.training.max_steps
    assert config.capture.warmup_steps < config.training.max_steps
