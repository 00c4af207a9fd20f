"""Every file that is named on the command line is used, or named with the reason why not."""

from __future__ import annotations

import gzip
import json
import zipfile
from codecs import BOM_UTF8
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.commands._traces import analyze_traces
from aorta.commands.analyze import command
from aorta.errors import ArtefactError
from tests.support.kineto import event, kernel, write

SMI = "timestamp, index, uuid, utilization.gpu [%]\n2026/11/27 22:22:38, 0, GPU-b, 50 %\n"


def capture(path: Path) -> Path:
    steps = [event("user_annotation", f"ProfilerStep#{n}", 100.0 * n, 99.0) for n in range(6)]
    return write(path, [*steps, *(kernel("gemm", 100.0 * n, 90.0) for n in range(6))])


@pytest.mark.parametrize(
    ("content", "reason"),
    [("", "it is empty"), ("text\n", "'text'"), ("# gpu pwr\n 0 1\n", "dmon -o DT"), (None, "No such file")],
)
def test_a_named_file_never_vanishes(tmp_path: Path, content: str | None, reason: str) -> None:
    other = tmp_path / "other.txt"
    if content is not None:
        other.write_text(content)
    done = CliRunner().invoke(
        command, [str(capture(tmp_path / "rank0.json")), str(other), "--json", str(tmp_path / "a.json")]
    )
    assert done.exit_code == 0, done.output
    problems = json.loads((tmp_path / "a.json").read_text())["data_quality"]["problems"]
    assert [(item["file"], reason in item["reason"]) for item in problems] == [(str(other), True)]


def test_samples_alone_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "smi.csv").write_text(SMI)
    done = CliRunner().invoke(command, [str(tmp_path / "smi.csv")])
    assert done.exit_code != 0
    assert "without a trace" in str(done.exception)


def refusal(folder: Path) -> str:
    done = CliRunner().invoke(command, [str(folder)])
    assert isinstance(done.exception, ArtefactError), done.output
    return str(done.exception)


def test_traces_of_a_folder_that_cannot_be_told_apart_say_so(tmp_path: Path) -> None:
    for name in ("first.json", "second.json"):
        capture(tmp_path / name)
    said = refusal(tmp_path)
    assert said.count("shows its rank") == 2
    assert "rank3.json" in said
    assert "traceEvents" not in said


def test_a_trace_in_utf_16_says_so(tmp_path: Path) -> None:
    path = capture(tmp_path / "rank0.json")
    path.write_text(path.read_text(), encoding="utf-16")
    said = refusal(tmp_path)
    assert "byte order mark: save it as UTF-8" in said
    assert "without traceEvents" not in said


@pytest.mark.parametrize("packed", [True, False])
def test_a_byte_order_mark_costs_nothing(tmp_path: Path, packed: bool) -> None:
    path = capture(tmp_path / "rank0.json")
    data = BOM_UTF8 + path.read_bytes()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert CliRunner().invoke(command, [str(tmp_path)]).exit_code == 0


def test_an_archive_that_was_read_is_not_called_unused(tmp_path: Path) -> None:
    path = capture(tmp_path / "rank0.json")
    with zipfile.ZipFile(tmp_path / "traces.zip", "w") as archive:
        archive.write(path, path.name)
    path.unlink()
    found = analyze_traces([tmp_path])
    assert [item.reason for item in found.data_quality.problems if "not used" in item.reason] == []


def test_a_damaged_table_costs_itself_beside_a_trace(tmp_path: Path) -> None:
    path = capture(tmp_path / "rank0.json")
    table = tmp_path / "operations.parquet"
    table.write_bytes(b"PAR1 and nothing else")
    found = analyze_traces([path, table])
    assert found.breakdown.steps > 0
    assert any("no Parquet" in item.reason for item in found.data_quality.problems)
    with pytest.raises(ArtefactError, match="no Parquet"):
        analyze_traces([table])
