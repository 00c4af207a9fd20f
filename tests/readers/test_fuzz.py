"""Damaged files of every kind: no crash, no hang, no more memory, and nothing read in part without a word.

The run over whole folders is `benchmarks/fuzz_readers.py`; this is a small part of it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aorta.artefacts.layout import RunDir
from aorta.artefacts.samples import (
    parse_amd_smi_json,
    parse_nvidia_smi_csv,
    parse_rocm_smi_json,
)
from aorta.config.load import load_config
from aorta.errors import ArtefactError, ConfigError
from aorta.readers.run import read_run
from aorta.readers.sacct import parse_rows, read_accounting
from aorta.readers.traces import read_traces
from tests.support import kineto
from tests.support.fuzz import BAD, Damage, Fuzzer, Intact, Reading, Subject, damages, judge, numbered
from tests.support.fuzz_subjects import folder_subjects, own_subjects
from tests.support.synthetic import RunSpec, write_run

ROCM = Path(__file__).parents[1] / "data" / "rocm"


def rocprof_json(path: Path) -> Path:
    dispatches = [
        {"start_timestamp": 1000 * i, "end_timestamp": 1000 * i + 700, "dispatch_info": {"kernel_id": 1}}
        for i in range(40)
    ]
    symbols = [{"kernel_id": 1, "formatted_kernel_name": "gemm<float>(a, b)"}]
    process = {"kernel_symbols": symbols, "buffer_records": {"kernel_dispatch": dispatches}}
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    return path


def database(path: Path, table: str, name: str) -> Path:
    with sqlite3.connect(path) as db:
        if name == "rocpd":
            db.execute(f"CREATE TABLE {table} (pid INT, start INT, end INT, name TEXT)")
            rows = [(7, 1000 * i, 1000 * i + 700, "gemm") for i in range(400)]
            db.executemany(f"INSERT INTO {table} VALUES (?,?,?,?)", rows)
        else:
            db.execute(
                f"CREATE TABLE {table} "
                "(start INT, end INT, deviceId INT, streamId INT, globalPid INT, shortName INT)"
            )
            db.execute("CREATE TABLE StringIds (id INT, value TEXT)")
            db.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
            rows = [(1000 * i, 1000 * i + 700, 0, 7, 1 << 24, 1) for i in range(400)]
            db.executemany(f"INSERT INTO {table} VALUES (?,?,?,?,?,?)", rows)
    db.close()
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    events = [
        kineto.kernel("ncclDevKernel_AllReduce<float>" if i % 3 else "gemm", i * 10.5, 4.25)
        for i in range(60)
    ]
    plain = kineto.write(folder / "rank0.json", events, distributedInfo={"rank": 0, "world_size": 1})
    (folder / "rank0_packed.json.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    rocprof_json(folder / "rank0_results.json")
    nsys = database(folder / "rank0.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL", "nsys")
    (folder / "packed.sqlite.gz").write_bytes(gzip.compress(nsys.read_bytes(), mtime=0))
    database(folder / "rank0_results.db", "kernels", "rocpd")
    for name in ("kernel_trace.csv", "memory_copy_trace.csv", "marker_api_trace.csv"):
        (folder / name).write_bytes((ROCM / name).read_bytes())
    return folder


def test_every_kind_of_file_survives_cuts_flips_and_blanks(traces: Path, tmp_path: Path) -> None:
    subjects = [*folder_subjects([traces]), *own_subjects(tmp_path / "own")]
    names = " ".join(subject.name for subject in subjects)
    for kind in (
        "rank0.json",
        ".json.gz",
        ".sqlite.gz",
        "results.db",
        "kernel_trace.csv",
        "rank_1_metrics.jsonl",
        "gpu_monitor.csv",
        "config.yaml",
        "sweep.json",
        "jobs.jsonl",
        "sacct",
        "session",
    ):
        assert kind in names
    # The second node's files are of the kinds of the first one's, and so are the second rank's.
    subjects = [item for item in subjects if not item.name.startswith(("run/nodes/node0", "run/rank_0"))]
    fuzzer = Fuzzer(tmp_path, workers=2)
    assert {subject.name: fuzzer.prepare(subject) for subject in subjects} == {
        subject.name: None for subject in subjects
    }
    cases = [
        (subject, damage)
        for subject in subjects
        for damage in damages(subject.source.stat().st_size, every=97, sample=3, flips=1, seed=1)
    ]
    outcomes = list(fuzzer.run(iter(cases)))
    assert [outcome for outcome in outcomes if outcome.outcome in BAD] == []
    counts = Counter(outcome.outcome for outcome in outcomes)
    assert counts["refused"] > 20
    assert counts["salvaged"] > 20
    assert len(outcomes) == len(cases)


# --- the instrument itself must be able to fail ---------------------------------------------------------


def outcome_of(tmp_path: Path, read: object, damage: Damage = Damage("cut", 3)) -> tuple[str, str]:  # noqa: B008
    path = tmp_path / "file.txt"
    path.write_text("1\n2\n3\n")
    subject = Subject("file", path, read)  # type: ignore[arg-type]
    fuzzer = Fuzzer(tmp_path)
    assert fuzzer.prepare(subject) is None
    (outcome,) = fuzzer.run(iter([(subject, damage)]))
    return outcome.outcome, outcome.detail


def test_a_reader_that_crashes_on_damage_is_caught(tmp_path: Path) -> None:
    def read(path: Path) -> Reading:
        assert path.read_text().endswith("3\n")
        return Reading(numbered([1]), ())

    assert outcome_of(tmp_path, read)[0] == "crash"


def test_a_reader_that_is_killed_is_caught(tmp_path: Path) -> None:
    def read(path: Path) -> Reading:
        if len(path.read_text()) < 6:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)
        return Reading(numbered([1]), ())

    assert outcome_of(tmp_path, read) == ("crash", "ended by SIGTERM")


def test_a_reader_that_grows_is_caught(tmp_path: Path) -> None:
    def read(path: Path) -> Reading:
        if len(path.read_text()) < 6:
            bytearray(b"x" * (80 << 20))
        return Reading(numbered([1]), ())

    assert outcome_of(tmp_path, read)[0] == "memory"


def test_a_reader_that_swallows_the_cut_is_caught(tmp_path: Path) -> None:
    def read(path: Path) -> Reading:
        return Reading(numbered(path.read_text().split()), ())

    assert outcome_of(tmp_path, read)[0] == "silent"


def test_a_reader_that_names_the_cut_but_gives_a_wrong_row_is_caught(tmp_path: Path) -> None:
    def read(path: Path) -> Reading:
        text = path.read_text()
        return Reading(numbered([len(text)]), () if len(text) == 6 else ("cut off",))

    outcome, detail = outcome_of(tmp_path, read)
    assert outcome == "silent"
    assert "1 rows that the intact file does not hold" in detail


def test_refusing_and_naming_are_right(tmp_path: Path) -> None:
    def refuse(path: Path) -> Reading:
        if len(path.read_text()) < 6:
            raise ArtefactError("cut off")
        return Reading(numbered([1]), ())

    def name(path: Path) -> Reading:
        rows = path.read_text().split()
        return Reading(numbered(rows), () if len(rows) == 3 else ("cut off",))

    assert outcome_of(tmp_path, refuse) == ("refused", "cut off")
    assert outcome_of(tmp_path, name)[0] == "salvaged"


def test_a_file_of_lines_cut_between_two_is_a_shorter_file(tmp_path: Path) -> None:
    subject = Subject("x", tmp_path, lambda _: Reading(numbered([]), ()), lines=True)
    intact = Intact(numbered([1, 2]), (), 0, b"1\n2\n")
    answer: dict[str, object] = {"rows": 1, "problems": [], "part": True, "foreign": 0, "equal": False}
    assert judge(answer, Damage("cut", 2), subject, intact)[0] == "same"
    assert judge(answer, Damage("cut", 3), subject, intact)[0] == "silent"


def test_damages_are_the_same_for_the_same_seed_and_within_the_file() -> None:
    found = damages(5000, every=1000, sample=None, flips=8, seed=3)
    assert [damage.at for damage in found if damage.kind == "cut"] == [0, 1000, 2000, 3000, 4000]
    assert found == damages(5000, every=1000, sample=None, flips=8, seed=3)
    assert all(damage.at < 5000 for damage in found)
    assert damages(0, every=1000, sample=None, flips=8, seed=3) == []
    assert len(Damage("blank", 4990).apply(bytes(5000))) == 5000


def test_the_command_counts_goes_on_and_fails_when_a_case_does(traces: Path, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz_readers.py"
    argv = [
        sys.executable,
        str(script),
        str(traces / "rank0.json"),
        "--no-own",
        "--every",
        "2000",
        "--flips",
        "2",
    ]
    argv += ["--state", str(tmp_path / "state")]
    first = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("1 files, ")
    state = (tmp_path / "state").read_text()
    again = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (tmp_path / "state").read_text() == state
    assert again.stdout.splitlines()[:2] == first.stdout.splitlines()[:2]
    (tmp_path / "state").write_text(state.replace('"refused"', '"crash"').replace('"salvaged"', '"crash"'))
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 1


def test_the_command_damages_what_is_in_gzip_files(traces: Path) -> None:
    packed = traces / "rank0_packed.json.gz"
    size = len(gzip.decompress(packed.read_bytes()))
    assert len(packed.read_bytes()) < 2000 < size
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz_readers.py"
    argv = [sys.executable, str(script), str(packed), "--no-own", "--every", "2000", "--flips", "0"]
    done = subprocess.run([*argv, "--unpacked"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"1 files, {math.ceil(size / 2000)} cases\n")


# --- anything at all ------------------------------------------------------------------------------------

GENTLE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
junk = st.one_of(
    st.text(max_size=300),
    st.lists(
        st.sampled_from(
            [
                "{",
                "}",
                "[",
                "]",
                '"',
                ":",
                ",",
                "|",
                "\n",
                "\0",
                "101",
                "1e999",
                "-1",
                "9" * 30,
                "N/A",
                "card0",
                "device",
                "gpu",
                "timestamp",
                "utilization.gpu [%]",
                "index",
                "NaN",
                "null",
                "true",
                "COMPLETED",
                "101.0",
                " ",
                "&a *a",
                "!!python/x",
            ]
        ),
        max_size=60,
    ).map("".join),
)


@GENTLE
@given(junk)
def test_text_of_any_program_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_nvidia_smi_csv, parse_rocm_smi_json, parse_amd_smi_json):
        with contextlib.suppress(ArtefactError):
            parse(text)
    parse_rows(text, "101")


@GENTLE
@given(
    junk,
    st.sampled_from(
        [
            "config.yaml",
            "manifest.json",
            "sacct_summary.txt",
            "rank_0_metrics.jsonl",
            "nodes/node0/gpu_monitor.csv",
            "nodes/node0/cpu_monitor.csv",
            "nodes/node0/status.json",
        ]
    ),
)
def test_a_run_with_any_text_in_any_file_is_read(tmp_path: Path, text: str, name: str) -> None:
    run = RunDir(tmp_path / "1node" / "run_101")
    if not run.root.exists():
        write_run(tmp_path, RunSpec(steps=3, ranks_per_node=1))
    path = run.root / name
    before = path.read_bytes() if path.exists() else None
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        read_run(run, query_accounting=False)
        read_accounting(run.sacct_summary)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


@GENTLE
@given(
    st.one_of(junk.map(str.encode), st.binary(max_size=400)),
    st.sampled_from(["rank0.json", "rank0.json.gz", "a.sqlite", "a.db", "kernel_trace.csv"]),
    st.sampled_from(
        [
            b"",
            b'{"traceEvents": [',
            b'{"rocprofiler-sdk-tool": [',
            b"SQLite format 3\0",
            b"\x1f\x8b\x08\0",
            b"Kernel_Name,Start_Timestamp,End_Timestamp\n",
        ]
    ),
)
def test_a_trace_of_any_bytes_is_read_or_refused(
    tmp_path: Path, data: bytes, name: str, start: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(start + data)
    try:
        assert read_traces([path], workers=1).traces
    except ArtefactError as error:
        assert path.name in error.message  # noqa: PT017  it may also be read


@GENTLE
@given(junk)
def test_a_configuration_of_any_text_is_taken_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        load_config(path)


# --- what this found ------------------------------------------------------------------------------------


def test_text_without_any_event_is_given_up_in_linear_time_and_memory(tmp_path: Path) -> None:
    """Was quadratic: minutes for text whose events all begin with an unknown key."""
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [' + b'{"x": "name": "y", ' * (1 << 20))
    found = read_traces([path], workers=1)
    assert "no event begins within 8 MiB" in found.problems[0].reason


@pytest.mark.parametrize("name", ["gpu_monitor.csv", "cpu_monitor.csv"])
def test_a_sample_whose_line_has_no_end_may_lack_digits_and_is_left_out(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path, RunSpec(steps=3, device="cuda"))
    path = run.node(0).root / name
    whole = read_run(run, query_accounting=False)
    merged = run.root / name
    merged.unlink()
    path.write_bytes(path.read_bytes()[:-1])
    cut = read_run(run, query_accounting=False)
    table, before = (getattr(data, name[:3]) for data in (cut, whole))
    assert len(table) == len(before) - 1
    assert any(problem.file.endswith(name) for problem in cut.problems)
    assert not any(problem.file.endswith(name) for problem in whole.problems)
