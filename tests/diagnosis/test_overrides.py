"""Thresholds changed for one analysis: what follows, what is said of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import read_json
from aorta.commands.analyze import command
from aorta.config.load import override_thresholds
from aorta.config.schema import Config
from aorta.config.thresholds import Thresholds
from aorta.diagnosis.analyse_run import analyse
from aorta.errors import ConfigError
from aorta.readers.run import read_run
from aorta.report.run import run_text
from tests.support.synthetic import RunSpec, write_run


def test_the_verdict_follows_and_the_report_says_from_what_to_what(tmp_path: Path) -> None:
    config = Config(thresholds=Thresholds(data_wait_pct=35.0))
    data = read_run(write_run(tmp_path, RunSpec(data_wait_ms=60.0, config=config)), query_accounting=False)
    assert analyse(data).verdict.kind == "data_loading"
    assert analyse(data).thresholds_changed == {}
    changed = analyse(data, overrides=["thresholds.data_wait_pct=99"])
    assert changed.verdict.kind != "data_loading"
    assert {key: (item.before, item.now) for key, item in changed.thresholds_changed.items()} == {
        "data_wait_pct": (35.0, 99.0)
    }
    assert "data_wait_pct from 35 to 99" in run_text(changed)
    same = analyse(data, overrides=["thresholds.data_wait_pct=35"])
    assert same.thresholds_changed == {}


def test_keys_that_follow_another_one_are_changed_with_it(tmp_path: Path) -> None:
    data = read_run(write_run(tmp_path, RunSpec()), query_accounting=False)
    changed = analyse(data, overrides=["thresholds.exposed_comm_pct=50"]).thresholds_changed
    assert sorted(changed) == ["exchange_pct", "exposed_comm_pct", "straggler_pct"]
    alone = ["thresholds.exposed_comm_pct=50", "thresholds.straggler_pct=20", "thresholds.exchange_pct=20"]
    assert list(analyse(data, overrides=alone).thresholds_changed) == ["exposed_comm_pct"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training.max_steps=5", "is not a threshold"),
        ("thresholds=5", "is not a threshold"),
        ("thresholds.host_pct", "is not written as"),
        ("thresholds.host_pct=many", "thresholds.host_pct is 'many'"),
        ("thresholds.host_pct=101", "thresholds.host_pct is 101"),
        ("thresholds.host_pct=null", "thresholds.host_pct is None"),
        ("thresholds.min_steady_steps=0", "thresholds.min_steady_steps is 0"),
        ("thresholds.stragler_pct=5", "unknown key thresholds.stragler_pct"),
    ],
)
def test_anything_else_is_refused_by_its_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override_thresholds(Thresholds(), [text])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "guess"),
    [
        ("stragler_pct", "straggler_pct"),
        ("min_steady_step", "min_steady_steps"),
        ("data_wait", "data_wait_pct"),
        ("exposed_pct", "exposed_comm_pct"),
    ],
)
def test_the_guess_is_of_the_last_word_of_a_key(wrong: str, guess: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override_thresholds(Thresholds(), [f"thresholds.{wrong}=5"])
    assert f"did you mean thresholds.{guess}?" in str(caught.value.hint)


def test_the_command_refuses_before_it_reads_and_prints_what_was_changed(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(data_wait_ms=60.0))
    options = [str(run.root), "--no-accounting", "--override"]
    wrong = CliRunner().invoke(command, [*options, "thresholds.data_wait=5"])
    assert isinstance(wrong.exception, ConfigError)
    assert not run.analysis.exists()
    both = ["thresholds.data_wait_pct=99", "thresholds.host_pct=99"]
    said = CliRunner().invoke(command, [*options, *both])
    assert said.exit_code == 0, said.output
    changed = read_json(run.analysis, Analysis).thresholds_changed
    assert {key: item.now for key, item in changed.items()} == {"data_wait_pct": 99.0, "host_pct": 99.0}
    assert "data_wait_pct from 30 to 99" in run.report.read_text()
