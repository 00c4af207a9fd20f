"""GPU counters of nsys: means by arithmetic, and what is absent stays absent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from aorta.commands._analysis import analyze_run
from aorta.readers.nsys_metrics import CounterMeans, read_counters
from tests.support.run_spec import RunSpec
from tests.support.synthetic import write_run

NAMES = {
    1: "SMs Active [Throughput %]", 2: "Tensor Active [Throughput %]",
    3: "DRAM Read Bandwidth [Throughput %]", 4: "DRAM Write Bandwidth [Throughput %]",
    5: "GPC Clock Frequency [MHz]",
}  # fmt: skip
TYPE = 0x7_0000_0000


def export(path: Path, values: Sequence[tuple[int, int, int]], names: dict[int, str] | None = None) -> Path:
    """An export with (gpu, metric, value) samples."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT)")
    db.execute(
        "CREATE TABLE TARGET_INFO_GPU_METRICS "
        "(typeId INT, sourceId INT, typeName TEXT, metricId INT, metricName TEXT)"
    )
    gpus = {gpu for gpu, _, _ in values}
    for gpu in gpus:
        rows = [(TYPE | gpu, 0, "GB100", metric, name) for metric, name in (names or NAMES).items()]
        db.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?,?,?,?,?)", rows)
    rows2 = [(at, TYPE | gpu, metric, value) for at, (gpu, metric, value) in enumerate(values)]
    db.executemany("INSERT INTO GPU_METRICS VALUES (?,?,?,?)", rows2)
    db.commit()
    db.close()
    return path


def test_means_over_samples_then_gpus(tmp_path: Path) -> None:
    first = export(
        tmp_path / "a.sqlite", [(0, 1, 90), (0, 1, 70), (1, 1, 40), (0, 2, 10), (0, 3, 20), (0, 4, 5)]
    )
    found, problems = read_counters([first])
    assert found == CounterMeans((80 + 40) / 2, 10.0, 20.0 + 5.0, gpus=2, samples=1)
    assert problems == ()


def test_a_measured_zero_is_zero_and_the_rest_absent(tmp_path: Path) -> None:
    found, _ = read_counters([export(tmp_path / "a.sqlite", [(0, 1, 0), (0, 3, 9)])])
    assert found is not None
    assert found.sm_active_pct == 0
    assert found.tensor_active_pct is None
    assert found.dram_active_pct is None, "reads without writes are not the memory's activity"


def test_numbers_that_are_no_percentages_do_not_count(tmp_path: Path) -> None:
    found, _ = read_counters(
        [export(tmp_path / "a.sqlite", [(0, 1, 50), (0, 1, -1), (0, 1, 101), (0, 5, 99)])]
    )
    assert found == CounterMeans(50.0, None, None, gpus=1, samples=1)


def test_exports_without_counters(tmp_path: Path) -> None:
    plain = tmp_path / "plain.sqlite"
    db = sqlite3.connect(plain)
    db.execute("CREATE TABLE StringIds (id INT, value TEXT)")
    db.commit()
    db.close()
    assert read_counters([plain]) == (None, ())
    (tmp_path / "broken.sqlite").write_bytes(b"no database")
    found, problems = read_counters([tmp_path / "broken.sqlite", export(tmp_path / "a.sqlite", [(0, 1, 7)])])
    assert found is not None
    assert found.sm_active_pct == pytest.approx(7)
    assert [problem.file for problem in problems] == ["broken.sqlite"]


@pytest.mark.parametrize("asked", [True, False])
def test_a_report_has_them_where_the_monitors_have_none(tmp_path: Path, asked: bool) -> None:
    run = write_run(tmp_path, RunSpec(nodes=1, steps=20))
    text = run.config.read_text()
    assert "gpu_metrics: false" in text
    run.config.write_text(text.replace("gpu_metrics: false", f"gpu_metrics: {str(asked).lower()}"))
    run.nsys.mkdir(exist_ok=True)
    export(run.nsys / "rank0.sqlite", [(0, 1, 60), (0, 2, 0)])
    found = analyze_run(run, query_accounting=False).analysis
    assert found.utilization is not None
    seen = (found.utilization.sm_active_pct, found.utilization.tensor_active_pct)
    assert seen == ((60, 0) if asked else (None, None))
    assert any("by nsys, 1 GPUs" in note for note in found.data_quality.notes) is asked
