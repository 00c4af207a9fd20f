"""Monitor files: merged with their hosts, idempotent, empty cells NaN and never 0."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS
from aorta.artefacts.layout import RunDir
from aorta.readers import parallel
from aorta.readers.samples import read_cpu_samples, read_gpu_samples
from aorta.readers.steps import read_steps
from tests.support.synthetic import RunSpec, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path, RunSpec(nodes=2, steps=12, device="cuda"))


def test_every_nodes_rows_are_in_the_merged_file_with_their_host(run: RunDir) -> None:
    table, problems = read_cpu_samples(run)
    assert table is not None
    assert problems == ()
    parts = [len(run.node(index).cpu_csv.read_text().splitlines()) - 1 for index in (0, 1)]
    assert table["hostname"].value_counts().to_dict() == {"node1": parts[0], "node2": parts[1]}
    merged = run.cpu_csv.read_text().splitlines()
    assert merged[0] == ",".join(CPU_COLUMNS)
    assert len(merged) == 1 + sum(parts)


def test_merging_again_changes_nothing(run: RunDir) -> None:
    read_gpu_samples(run)
    first, stamp = run.gpu_csv.read_bytes(), run.gpu_csv.stat().st_mtime_ns
    read_gpu_samples(run)
    assert run.gpu_csv.read_bytes() == first
    assert run.gpu_csv.stat().st_mtime_ns == stamp


def test_a_run_copied_without_its_node_folders_keeps_its_merged_file(run: RunDir) -> None:
    before, _ = read_cpu_samples(run)
    for index in (0, 1):
        run.node(index).cpu_csv.unlink()
    after, problems = read_cpu_samples(run)
    assert problems == ()
    assert before is not None
    assert after is not None
    assert after.equals(before)


def test_nanoseconds_stay_exact(run: RunDir) -> None:
    path = run.node(0).cpu_csv
    lines = path.read_text().splitlines()
    exact = 2**53 + 1  # no float64 holds it
    cells = lines[1].split(",")
    cells[CPU_COLUMNS.index("mono_ns")] = str(exact)
    path.write_text("\n".join([lines[0], ",".join(cells)]) + "\n")
    table, _ = read_cpu_samples(run)
    assert table is not None
    assert exact in table["mono_ns"].tolist()


@pytest.mark.parametrize(("cell", "value"), [("", math.nan), ("[N/A]", math.nan), ("0", 0.0), ("0.0", 0.0)])
def test_absent_is_not_zero_and_zero_is_not_absent(run: RunDir, cell: str, value: float) -> None:
    for index in (0, 1):
        path = run.node(index).gpu_csv
        header, *rows = path.read_text().splitlines()
        column = header.split(",").index("utilization_gpu")
        changed = []
        for row in rows:
            cells = row.split(",")
            cells[column] = cell
            changed.append(",".join(cells))
        path.write_text("\n".join([header, *changed]) + "\n")
    table, _ = read_gpu_samples(run)
    assert table is not None
    column_values = table["utilization_gpu"].astype(float)
    assert column_values.isna().all() if math.isnan(value) else (column_values == value).all()


def test_bad_rows_are_counted_and_named(run: RunDir) -> None:
    path = run.node(1).cpu_csv
    whole = len(path.read_text().splitlines()) - 1
    with path.open("a") as stream:
        stream.write("2026-01-01T00:00:00+00:00,cut off")
    table, problems = read_cpu_samples(run)
    assert table is not None
    assert (table["hostname"] == "node2").sum() == whole
    assert [(problem.file, problem.reason) for problem in problems] == [
        ("nodes/node1/cpu_monitor.csv", f"1 rows are not usable; the first is line {whole + 2}")
    ]


def test_a_foreign_file_is_named(run: RunDir) -> None:
    run.node(0).cpu_csv.write_text("a,b\n1,2\n")
    table, problems = read_cpu_samples(run)
    assert table is not None
    assert problems[0].file == "nodes/node0/cpu_monitor.csv"
    assert "lacks the columns" in problems[0].reason


def test_no_samples_at_all_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cpu"))
    assert read_gpu_samples(run) == (None, ())
    assert not run.gpu_csv.exists()


@pytest.mark.parametrize("cell", ["²", "1" + "0" * 23, "x" * 200_000])
def test_a_cell_that_no_monitor_writes_costs_its_row(run: RunDir, cell: str) -> None:
    path = run.node(1).cpu_csv
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[CPU_COLUMNS.index("wall_ns")] = cell
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    table, problems = read_cpu_samples(run)
    assert table is not None
    assert (table["hostname"] == "node2").sum() == len(lines) - 2
    assert [problem.reason for problem in problems] == ["1 rows are not usable; the first is line 2"]


def test_rows_of_a_node_that_has_none_of_its_own_any_more_stay(run: RunDir) -> None:
    before, _ = read_cpu_samples(run)
    assert before is not None
    kept = run.cpu_csv.read_bytes()
    run.node(1).cpu_csv.unlink()
    after, _ = read_cpu_samples(run)
    assert after is not None
    assert after.equals(before)
    assert run.cpu_csv.read_bytes() == kept


@pytest.mark.parametrize(
    ("column", "cell", "possible"),
    [
        ("memory_used_mb", "inf", False),
        ("memory_used_mb", "1e9", False),
        ("utilization_gpu", "100.1", False),
        ("utilization_gpu", "-1", False),
        ("utilization_gpu", "100", True),
        ("utilization_gpu", "0", True),
        ("memory_used_mb", str(80 * 1024), True),  # all of it
        ("temperature", "-3", True),
        ("temperature", "4294967295", False),
        ("power_draw_w", "4294967.29", False),
        ("power_draw_w", "1400", True),
        ("sm_clock_mhz", "4294967295", False),
        ("sm_clock_mhz", "2100", True),
    ],
)
def test_what_nothing_can_measure_is_not_measured(
    run: RunDir, column: str, cell: str, possible: bool
) -> None:
    path = run.node(0).gpu_csv
    lines = path.read_text().splitlines()
    header = lines[0].split(",")
    cells = lines[1].split(",")
    cells[header.index(column)] = cell
    cells[header.index("memory_total_mb")] = str(80 * 1024)
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    table, problems = read_gpu_samples(run)
    assert table is not None
    first = table[(table["node_index"] == 0) & (table["gpu_id"] == 0)].iloc[0]
    if possible:
        assert first[column] == float(cell)
        assert problems == ()
    else:
        assert math.isnan(first[column])
        reason = f"1 values are out of range and count as not measured ({column})"
        assert [(item.file, item.reason) for item in problems] == [("gpu_monitor.csv", reason)]


def test_a_file_read_at_once_gives_what_reading_row_by_row_gives(run: RunDir) -> None:
    whole, _ = read_gpu_samples(run)
    text = run.gpu_csv.read_bytes()
    # A quoted cell is usual CSV, and no file that can be taken as a whole.
    path = run.node(0).gpu_csv
    path.write_text(path.read_text().replace("Test GPU", '"Test GPU"'))
    rows, problems = read_gpu_samples(run)
    assert problems == ()
    assert whole is not None
    assert rows is not None
    assert rows.equals(whole)
    assert rows.dtypes.equals(whole.dtypes)
    assert run.gpu_csv.read_bytes() == text


def test_a_merged_file_grows_with_its_sources(run: RunDir) -> None:
    path = run.node(1).cpu_csv
    text = path.read_text()
    path.write_text("".join(text.splitlines(keepends=True)[:3]))
    first, _ = read_cpu_samples(run)
    path.write_text(text)
    second, problems = read_cpu_samples(run)
    assert problems == ()
    assert first is not None
    assert second is not None
    assert len(second) - len(first) == len(text.splitlines()) - 3
    assert len(run.cpu_csv.read_text().splitlines()) == 1 + len(second)
    assert [item.name for item in run.root.glob(".*")] == []


def test_rows_of_another_node_than_the_folders_are_put_in_order(run: RunDir) -> None:
    one, other = run.node(0).cpu_csv, run.node(1).cpu_csv
    usual, _ = read_cpu_samples(run)
    first, second = one.read_text(), other.read_text()
    one.write_text(second)
    other.write_text(first)
    run.cpu_csv.unlink()
    swapped, _ = read_cpu_samples(run)
    assert usual is not None
    assert swapped is not None
    assert swapped.equals(usual)


def test_many_files_read_side_by_side_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path, RunSpec(nodes=3, steps=4, device="cuda"))
    alone, _ = read_gpu_samples(run)
    steps = read_steps(run)
    monkeypatch.setattr(parallel, "_WORTH_IT", 0)
    monkeypatch.setattr(parallel, "_AT_ONCE", 1)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    together, _ = read_gpu_samples(run)
    assert alone is not None
    assert together is not None
    assert together.equals(alone)
    again = read_steps(run)
    assert list(again.by_rank) == list(steps.by_rank)
    assert all(list(again.by_rank[rank]) == list(steps.by_rank[rank]) for rank in again.by_rank)


def test_neighbours_of_a_broken_file_are_read_as_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path, RunSpec(nodes=3, steps=4, device="cuda"))
    monkeypatch.setattr(parallel, "_AT_ONCE", 3)
    whole, _ = read_gpu_samples(run)
    path = run.node(1).gpu_csv
    header, *rows = path.read_text().splitlines()
    cells = rows[0].split(",")
    cells[GPU_COLUMNS.index("mono_ns")] = "+" + cells[GPU_COLUMNS.index("mono_ns")]
    path.write_text("\n".join([header, ",".join(cells), *rows[1:]]) + "\n")
    run.gpu_csv.unlink()
    table, problems = read_gpu_samples(run)
    assert [(item.file, item.reason) for item in problems] == [
        ("nodes/node1/gpu_monitor.csv", "1 rows are not usable; the first is line 2")
    ]
    assert whole is not None
    assert table is not None
    lost = (whole["node_index"] == 1).to_numpy().argmax()
    assert table.equals(whole.drop(index=lost).reset_index(drop=True))


def test_tables_leave_out_the_time_as_text(run: RunDir) -> None:
    for table, columns in ((read_gpu_samples(run)[0], GPU_COLUMNS), (read_cpu_samples(run)[0], CPU_COLUMNS)):
        assert table is not None
        assert list(table) == [name for name in columns if name != "timestamp"]
