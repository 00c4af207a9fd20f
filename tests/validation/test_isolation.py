"""The analysis cannot see the truth: what stands beside a run about its faults changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import yaml

from aorta.config.schema import FaultsConfig
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed


def test_a_contradicting_truth_beside_a_run_changes_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, extra_data_ms={1: 80.0}))
    before = analysed(run)
    assert (before.verdict.kind, before.verdict.ranks) == ("data_loading", [1])

    lie = msgspec.to_builtins(FaultsConfig(ranks=[0], compute_delay_ms=500.0, comm_mb=64.0))
    run.injected.write_text(json.dumps(lie))
    config = yaml.safe_load(run.config.read_text())
    run.config.write_text(yaml.safe_dump({**config, "faults": lie}))
    assert analysed(run) == before


def test_thresholds_beside_the_faults_do_count(tmp_path: Path) -> None:
    """The twin: the same file changed in what the analysis is meant to read."""
    run = write_run(tmp_path, RunSpec(nodes=2, extra_data_ms={1: 80.0}))
    config = yaml.safe_load(run.config.read_text())
    config["thresholds"] = {"data_wait_pct": 100.0, "exposed_comm_pct": 100.0}
    run.config.write_text(yaml.safe_dump(config))
    assert analysed(run).verdict.kind == "healthy"
