"""Clocks of nodes that are apart and drift: the verdict is that of one clock, and the fit is on record."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import RunDir
from aorta.report.evidence import replay_words
from aorta.units import NS_PER_S
from tests.support.synthetic import START_MONO_NS, RunSpec, write_run
from tests.support.verdicts import analysed


def made(results: Path, ppm: int, **changes: object) -> Analysis:
    """40 s of two nodes, the second of which has a clock that is 5 s ahead and `ppm` fast."""
    spec = RunSpec(
        nodes=2, ranks_per_node=1, steps=400, jitter_ms=2.0, monitor_interval_s=10.0,
        clock_offset_ns={1: 5_000_000_000}, **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    run = write_run(results, spec)
    if ppm:
        _drift(run, ppm)
    return analysed(run)


def _drift(run: RunDir, ppm: int) -> None:
    lines = []
    for line in run.records(1).read_text().splitlines():
        record = json.loads(line)
        before = record["mono_end_ns"] - record["mono_start_ns"]
        for key in ("mono_start_ns", "mono_end_ns"):
            record[key] += round((record[key] - START_MONO_NS) * ppm / 1_000_000)
        record["breakdown"]["host_ns"] += record["mono_end_ns"] - record["mono_start_ns"] - before
        lines.append(json.dumps(record))
    run.records(1).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("ppm", [0, 500])
def test_a_slow_rank_is_found_though_clocks_drift(tmp_path: Path, ppm: int) -> None:
    """500 ppm are 20 ms over the run: at its ends, an offset alone is off by a third of the lateness."""
    found = made(tmp_path, ppm, extra_compute_ms={1: 30.0})
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [1])
    waits = {row.rank: row.wait_ms for row in found.breakdown.per_rank}
    # What 30 ms make of forward, backward and optimizer, less a little jitter.
    assert waits[0] == pytest.approx(34.0, abs=0.5)
    assert waits[1] == pytest.approx(0.0, abs=0.1)
    (clock,) = found.clocks
    assert clock.ranks == [1]
    assert clock.fast_ppm == pytest.approx(ppm, rel=0.01)
    assert clock.ahead_ms == pytest.approx(5000.0, abs=25.0 if ppm else 0.001)
    assert clock.uncertainty_ms < 0.05
    assert ("drift of up to 500 ppm" in replay_words(found)) is bool(ppm)
    assert "agree to within 0" in replay_words(found)


def test_one_clock_has_no_fit(tmp_path: Path) -> None:
    found = analysed(write_run(tmp_path, RunSpec(nodes=1, ranks_per_node=2, steps=24)))
    assert found.clocks == []
    assert "Clocks" not in replay_words(found)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Analysis) == found


@pytest.mark.parametrize("ahead_s", [0, -600, 86_400])
def test_ranks_of_one_machine_in_time_namespaces_of_their_own_are_aligned(
    tmp_path: Path, ahead_s: int
) -> None:
    spec = RunSpec(
        nodes=2, ranks_per_node=1, separate_hosts=False, executor="local", extra_compute_ms={1: 60.0},
        clock_offset_ns={1: ahead_s * NS_PER_S},
    )  # fmt: skip
    found = analysed(write_run(tmp_path, spec))
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [1])
    assert [round(clock.ahead_ms) for clock in found.clocks] == ([1000 * ahead_s] if ahead_s else [])
