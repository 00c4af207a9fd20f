"""Exports without environments, command lines and output."""

from __future__ import annotations

import json
import sqlite3

import pytest

from aorta.runner.scrub import scrub, still_in
from tests.support.nsys import SECRET, Export, plant


def test_an_export_of_nsys_keeps_what_explains_and_its_events(tmp_path):
    path = plant(Export(ranges=[(0, 5, 7, "aorta.step", 59)]).write(tmp_path / "a.sqlite"))
    assert SECRET in path.read_bytes()
    scrub(path)
    assert SECRET not in path.read_bytes()
    with sqlite3.connect(path) as db:
        environment = dict(db.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
        assert environment == {"DeviceEnvironment": "RANK=3;SLURM_JOB_ID=7", "Hostname": "n1"}
        assert db.execute("SELECT text, start, end FROM NVTX_EVENTS").fetchall() == [("aorta.step", 0, 5)]
        strings = dict(db.execute("SELECT id, value FROM StringIds WHERE id >= 900"))
        assert strings == {900: "stdout", 901: "", 902: "RANK=3\0SLURM_JOB_ID=7", 903: "kernel"}
        assert dict(db.execute("SELECT name, value FROM META_DATA_CAPTURE")) == {
            "PROCESS_0:COMMAND": "",
            "RATE_HZ": "0",
        }


def test_a_rocpd_database_keeps_the_rank(tmp_path):
    path = tmp_path / "x_rank3_results.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE rocpd_info_process_0a (pid, command, environment, extdata)")
        variables = json.dumps({"RANK": "3", "HF_TOKEN": SECRET.decode()})
        command = f"python --password {SECRET.decode()}"
        db.execute("INSERT INTO rocpd_info_process_0a VALUES (1, ?, ?, '{}')", (command, variables))
    scrub(path)
    assert SECRET not in path.read_bytes()
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT pid, command, environment FROM rocpd_info_process_0a").fetchall()
    assert rows == [(1, "", '{"RANK": "3"}')]


def test_rocprof_json_keeps_its_records(tmp_path):
    path = tmp_path / "x_rank0_results.json"
    secret = SECRET.decode()
    tool = {
        "metadata": {
            "pid": 5,
            "command": ["python", "--password", secret],
            "node": {"environment": {"RANK": "0", "HF_TOKEN": secret}},
        },
        "buffer_records": {"kernel_dispatch": [{"start_timestamp": 1}]},
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool], "other": 1}))
    scrub(path)
    assert json.loads(path.read_text()) == {
        "rocprofiler-sdk-tool": [
            {
                "metadata": {"pid": 5, "command": [], "node": {"environment": {"RANK": "0"}}},
                "buffer_records": {"kernel_dispatch": [{"start_timestamp": 1}]},
            }
        ],
        "other": 1,
    }


def test_other_files_stay_as_they_are(tmp_path):
    for name in ("a.csv", "other.json"):
        path = tmp_path / name
        path.write_text('{"a": 1}')
        scrub(path)
        assert path.read_text() == '{"a": 1}'


@pytest.mark.parametrize("between", [";", "\0", "\n"])
def test_what_may_stay_hides_nothing_behind_it(tmp_path, between):
    path = Export(ranges=[(0, 5, 7, "aorta.step", 59)]).write(tmp_path / "a.sqlite")
    variables = ["SHELL=/bin/bash", f"HF_TOKEN={SECRET.decode()}", "PATH=/a:/b"]
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        row = ("DeviceEnvironment", between.join(variables))
        db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)", row)
    scrub(path)
    assert SECRET not in path.read_bytes()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV").fetchall() == [
            ("SHELL=/bin/bash;PATH=/a:/b",)
        ]


def test_formats_that_cannot_be_scrubbed_are_told_apart(tmp_path):
    for name, known in (("a.csv", True), ("a.pftrace", False), ("a.json", False), ("a.otf2", False)):
        path = tmp_path / name
        path.write_text("{}")
        assert scrub(path) is known


def test_a_secret_that_is_left_is_found_by_its_variable(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"\x00 here: correct horse battery \xff, tiny1")
    environ = {"MY_PASSWORD": "correct horse battery", "API_KEY": "tiny1", "OTHER": "here: correct"}
    assert still_in(path, environ) == ["MY_PASSWORD"]
    assert still_in(path, {"MY_PASSWORD": "another battery"}) == []
    path.write_bytes(b"")
    assert still_in(path, environ) == []
