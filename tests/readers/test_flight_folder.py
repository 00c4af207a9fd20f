"""Folders of flight recorders: of several jobs, of several kinds, and with files that are cut."""

from __future__ import annotations

import pickle
import shutil

import pytest

from aorta.diagnosis.analyse_recordings import analyse_recordings
from aorta.errors import ArtefactError
from aorta.readers.flight_files import find
from aorta.readers.flight_folder import read_folder
from tests.support.flight_jobs import Job

CALLS = [{"group": "0", "name": "all_reduce"}] * 4


def write(folder, world=4, stopped=2, name="_dump_{}", **form):
    folder.mkdir(parents=True, exist_ok=True)
    made = Job(world, {}, [CALLS] * world)
    if stopped is not None:
        made.ranks[stopped].stops_at = 3
    for rank, data in made.run().dumps(**form).items():
        (folder / name.format(rank)).write_bytes(data)
    return folder


def said(folder):
    found = read_folder(find([folder]))
    made = analyse_recordings(found.recordings, found.problems, found.unread)
    ranks = [(item.rank, item.kind) for item in made.hang.ranks] if made.hang else None
    return ranks, made.verdict.statement


def test_a_folder_per_node_is_one_job(tmp_path):
    write(tmp_path / "all")
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
        for rank in (2 * node, 2 * node + 1):
            shutil.move(tmp_path / "all" / f"_dump_{rank}", tmp_path / f"node{node}")
    assert said(tmp_path)[0] == [(2, "host_stuck")]


def test_folders_of_several_jobs_are_not_mixed(tmp_path):
    write(tmp_path / "first")
    write(tmp_path / "second", stopped=None)
    with pytest.raises(ArtefactError, match=r"several jobs: rank 0 is in .*first and .*second"):
        read_folder(find([tmp_path]))
    assert said(tmp_path / "first")[0] == [(2, "host_stuck")]


def test_ranks_of_jobs_of_different_sizes_are_not_mixed(tmp_path):
    write(tmp_path)
    other = write(tmp_path / "other", world=8, stopped=5)
    for rank in range(4, 8):
        shutil.move(other / f"_dump_{rank}", tmp_path)
    shutil.rmtree(other)
    with pytest.raises(ArtefactError, match=r"several jobs: .*_dump_0 of 4 ranks, .*_dump_4 of 8 ranks"):
        read_folder(find([tmp_path]))


def test_of_two_kinds_in_one_folder_the_one_that_tells_more_counts(tmp_path):
    write(tmp_path, name="gloo_trace_{}", stopped=None, buffer=1)
    write(tmp_path, name="nccl_trace_{}")
    assert said(tmp_path)[0] == [(2, "host_stuck")]
    assert len(read_folder(find([tmp_path])).problems) == 4


@pytest.mark.parametrize("kept", [0, 3, 400])
def test_a_rank_whose_dump_is_cut_has_left_a_sign(tmp_path, kept):
    write(tmp_path)
    cut = tmp_path / "_dump_2"
    cut.write_bytes(cut.read_bytes()[:kept])
    ranks, statement = said(tmp_path)
    assert ranks is None
    assert "wait for rank 2, whose dump cannot be used" in statement
    cut.unlink()
    assert said(tmp_path)[0] == [(2, "dead_peer")]


def test_another_file_beside_the_dumps_is_no_rank(tmp_path):
    write(tmp_path)
    (tmp_path / "fault_injection.log").write_text("rank 3")
    assert read_folder(find([tmp_path])).unread == set()


@pytest.mark.parametrize("stopped", [None, 2])
@pytest.mark.parametrize("sends", [0, 1])
def test_sends_that_gloo_counts_and_does_not_record_are_named(tmp_path, sends, stopped):
    write(tmp_path, stopped=stopped, backend="gloo", config=False)
    for path in tmp_path.iterdir():
        content = pickle.loads(path.read_bytes())
        for entry in content["entries"]:
            entry["op_id"] += sends
        path.write_bytes(pickle.dumps(content))
    ranks, statement = said(tmp_path)
    assert ranks == (None if stopped is None else [(2, "host_stuck")])
    assert ("may be waiting in one" in statement) == bool(sends)
