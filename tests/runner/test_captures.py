"""What became of the profiler's reports."""

from __future__ import annotations

import os
import time

import pytest

from aorta.artefacts.records import RankExit
from aorta.runner.captures import FULL_BYTES, NO_ROOM_BYTES, ResultsSpace, TempSpace, findings, of_rank

STEM = "x_1node_profile"
BEGAN_S = time.time() - 1


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_every_ranks_report_is_expected_and_rank_1_is_not_rank_10(tmp_path):
    make(tmp_path, f"{STEM}_rank0_a_1.nsys-rep", f"{STEM}_rank10_a_2.nsys-rep", f"{STEM}_rank2_a_3.qdstrm")
    (tmp_path / f"{STEM}_rank3_a_4.nsys-rep").touch()
    reason = "the profiler wrote no report, and the rank's output does not show why"
    assert findings(tmp_path, STEM, [0, 1, 2, 3, 10], {}, BEGAN_S) == [
        f"profiler's report of rank 1: {reason}",
        f"profiler's report of rank 3: {reason}",
    ]
    assert [path.name for path in of_rank(tmp_path, 2).streams] == [f"{STEM}_rank2_a_3.qdstrm"]


def test_files_one_level_below_count(tmp_path):
    make(tmp_path, f"host/{STEM}_rank0_h_1_kernel_trace.csv")
    assert findings(tmp_path, STEM, [0], {}, BEGAN_S) == []


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (["x", "Import Failed: no space"], "could not write it (is the disk full?): no space"),
        (["Importer error: Import Failed", "why"], "could not write it (is the disk full?): why"),
        (["Generated:", ""], "its capture range never began"),
        (["loss 1", "Generating '/tmp/nsys-report-1.qdstrm'"], "ended while the profiler was still writing"),
        (["unrecognised option '--osrt-threshold'"], "does not support an option: '--osrt-threshold'"),
        (["unrecognized option '--osrt-threshold'"], "does not support an option: '--osrt-threshold'"),
        (["write: No space left on device"], "the profiler could not write it: the disk is full"),
        (["No reports were generated"], "the profiler was never told to start"),
        (["sem_open: File exists"], "this happens if two profilers start at the same moment): submit again"),
        (["loss 0.3"], "does not show why"),
    ],
)
def test_the_reason_is_the_profilers_own_word(tmp_path, output, reason):
    (said,) = findings(tmp_path, STEM, [0], {0: output}, BEGAN_S)
    assert said.startswith("profiler's report of rank 0: ")
    assert reason in said


def test_a_strayed_report_is_brought_home(tmp_path):
    home, away = tmp_path / "nsys", tmp_path / "tmp"
    home.mkdir()
    make(away, "report1.nsys-rep")
    output = {
        0: ["Generated:", f"    {away}/report1.nsys-rep"],
        1: ["Generated:", f"    {away}/gone.nsys-rep"],
    }
    moved, lost = findings(home, STEM, [0, 1], output, BEGAN_S)
    assert moved == f"the report of rank 0 was in {away} and was moved to {home}"
    assert lost.endswith(f"the profiler left it at {away}/gone.nsys-rep, and it could not be moved")
    assert [path.name for path in home.iterdir()] == [f"{STEM}_rank0_report1.nsys-rep"]


@pytest.mark.parametrize("case", ["older", "link", "folder"])
def test_a_file_that_the_profiler_did_not_write_is_not_moved(tmp_path, case):
    """A program may print any path, such as that of yesterday's report."""
    home, away = tmp_path / "nsys", tmp_path / "mine"
    home.mkdir()
    make(away, "other.nsys-rep")
    path = away / "report.nsys-rep"
    if case == "older":
        make(away, path.name)
        os.utime(path, (BEGAN_S - 60,) * 2)
    elif case == "link":
        path.symlink_to(away / "other.nsys-rep")
    else:
        path.mkdir()
    (lost,) = findings(home, STEM, [0], {0: ["Generated:", f"    {path}"]}, BEGAN_S)
    assert lost.endswith("and it could not be moved")
    assert path.exists()
    assert list(home.iterdir()) == []


def test_a_placeholder_left_in_a_name_is_said(tmp_path):
    make(tmp_path, f"{STEM}_rank%q{{RANK}}_a_1.nsys-rep")
    said = findings(tmp_path, STEM, [0], {}, BEGAN_S)
    assert "%q{RANK} was not replaced" in said[0]
    assert "report of rank 0" in said[1]


def test_a_full_temporary_folder_is_found_though_it_is_empty_again(tmp_path, monkeypatch):
    free = iter([FULL_BYTES * 100, 1 << 20, FULL_BYTES * 100])
    monkeypatch.setattr(TempSpace, "_free", lambda self: next(free))
    space = TempSpace(tmp_path)
    assert space.warning is None
    assert space.finding([]) is None
    space.look()
    space.look()
    assert "(1 MiB free)" in space.finding([])
    died = RankExit(rank=3, exit_code=None, signal="SIGSEGV")
    assert "here 3" in space.finding([died])


def test_little_room_is_said_before_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(TempSpace, "_free", lambda self: 1 << 29)
    assert TempSpace(tmp_path).warning == f"only 0.50 GiB free in {tmp_path}: set TMPDIR to another folder"


def test_a_full_results_disk_is_noticed_once_and_told_at_the_end(tmp_path):
    free = [NO_ROOM_BYTES, NO_ROOM_BYTES - 1, 0, NO_ROOM_BYTES]
    space = ResultsSpace(tmp_path, lambda _: free.pop(0))
    assert [space.look(), space.finding] == [False, None]
    assert [space.look(), space.look()] == [True, False]
    assert "was full while the ranks ran and still is" in space.finding
    space.look()
    assert "was full while the ranks ran and has room again" in space.finding


def test_a_file_system_that_does_not_tell_its_space_is_not_called_full(tmp_path):
    def refuse(_):
        raise OSError(5, "Input/output error")

    space = ResultsSpace(tmp_path, refuse)
    assert [space.look(), space.finding] == [False, None]
