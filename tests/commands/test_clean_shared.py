"""`aorta clean` beside other users: their links, files and folders change nothing of what goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aorta.artefacts.files import DEEPEST
from aorta.artefacts.layout import job_output
from aorta.commands import _owned
from tests.commands.test_clean import age, made
from tests.support.commands import run
from tests.support.rights import ordinary

RESULTS = Path("results/profiling")
OTHER = 65534


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def of_another(path: Path) -> None:
    """Give a file to another user, as only root can."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, OTHER)
    else:
        pytest.skip("only root can give a file to another user")


def test_a_scenario_behind_a_link_stays(tmp_path: Path) -> None:
    elsewhere = made(tmp_path / "elsewhere", "7", days=40)
    RESULTS.mkdir(parents=True)
    (RESULTS / elsewhere.root.parent.name).symlink_to(elsewhere.root.parent)
    assert "nothing" in run("clean", "--older-than", "30d", "--yes").output
    assert elsewhere.manifest.exists()
    direct = str(tmp_path / "elsewhere/results/profiling")
    assert run("clean", "--older-than", "30d", "--yes", "--results", direct).exit_code == 0
    assert not elsewhere.root.exists(), "asked for by its own name, it goes"


def test_files_of_others_stay(tmp_path: Path) -> None:
    mine, whole = made(tmp_path, "7", days=40), made(tmp_path, "8", days=40)
    foreign = mine.root / "rank_9_metrics.jsonl"
    outputs = [job_output(RESULTS, "1node", job) for job in ("7", "8")]
    for path in (foreign, *outputs):
        path.write_text("theirs")
        of_another(path)
    age(mine.root, 40)
    told = run("clean", "--older-than", "30d", "--yes").output
    assert f"stays: {foreign.relative_to(tmp_path)}" in told
    assert foreign.exists()
    assert mine.manifest.exists()
    assert not whole.root.exists()
    assert all(path.exists() for path in outputs)


@pytest.mark.parametrize("kind", ["sparse", "link", "foreign"])
def test_a_quota_counts_own_bytes_alone(tmp_path: Path, kind: str) -> None:
    mine = made(tmp_path, "7", days=40)
    before = _owned.own_bytes(RESULTS)
    assert before > 0
    large = RESULTS / "large"
    if kind == "link":
        (tmp_path / "target").write_bytes(b"x" * 2_000_000)
        large.symlink_to(tmp_path / "target")
    elif kind == "sparse":
        large.touch()
        os.truncate(large, 5 << 40)
    else:
        large.write_bytes(b"x" * 2_000_000)
        of_another(large)
    assert _owned.own_bytes(RESULTS) == before
    assert "nothing" in run("clean", "--keep-below", "1M", "--yes").output
    assert mine.manifest.exists()


def test_own_bytes_count(tmp_path: Path) -> None:
    mine = made(tmp_path, "7", days=40)
    (RESULTS / "large").write_bytes(b"x" * 2_000_000)
    assert "run_7" in run("clean", "--keep-below", "1M", "--dry-run").output
    assert mine.manifest.exists()


def test_folders_that_nobody_may_enter_stop_nothing(tmp_path: Path) -> None:
    mine = made(tmp_path, "7", days=40)
    closed = tmp_path / "closed"
    closed.mkdir()
    submission = RESULTS / "run_20200101_000000"
    submission.mkdir()
    job = {
        "job_id": "9", "scenario": "1node", "nodes": 1, "run_dir": str(closed / "run_9"),
        "submitted_wall_ns": 1, "config": "c", "script": "s",
    }  # fmt: skip
    (submission / "jobs.jsonl").write_text(json.dumps(job) + "\n")
    (mine.root / "half").mkdir()
    age(RESULTS, 40)
    closed.chmod(0)
    (mine.root / "half").chmod(0o400)
    try:
        with ordinary():
            done = run("clean", "--older-than", "30d", "--yes")
    finally:
        closed.chmod(0o700)
    assert done.exit_code == 0, done.output
    assert not (mine.root / "rank_0_metrics.jsonl").exists()


def test_folders_without_end_are_left_alone(tmp_path: Path) -> None:
    mine = made(tmp_path, "7", days=40)
    deep = mine.root.joinpath(*["d"] * (DEEPEST + 5))
    deep.mkdir(parents=True)
    (deep / "mine").write_text("x")
    age(mine.root, 40)
    told = run("clean", "--older-than", "30d", "--yes")
    assert told.exit_code == 0, told.output
    assert (deep / "mine").exists()
    assert mine.manifest.exists()


def test_what_became_a_link_meanwhile_stays(tmp_path: Path) -> None:
    from aorta.commands._prune import old_folders, remove

    mine, kept = made(tmp_path, "7", days=40), made(tmp_path / "elsewhere", "7", days=40)
    (old,) = old_folders(RESULTS, 2**62)
    mine.root.rename(tmp_path / "away")
    mine.root.symlink_to(kept.root)
    assert "a link or a file has replaced the folder" in " ".join(remove(old))
    assert kept.manifest.exists()


def test_a_folder_that_becomes_a_link_during_the_removal_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aorta.commands import _removal
    from aorta.commands._prune import old_folders, remove

    mine, kept = made(tmp_path, "7", days=40), made(tmp_path / "elsewhere", "7", days=40)
    for run_dir in (mine, kept):
        (run_dir.root / "nsys").mkdir(exist_ok=True)
        (run_dir.root / "nsys/summary_stats.csv").write_text("x")
    (old,) = old_folders(RESULTS, 2**62)
    looked = os.lstat

    def swapped(name: str, *, dir_fd: int) -> os.stat_result:
        found = looked(name, dir_fd=dir_fd)
        folder = mine.root / "nsys"
        if name == "nsys" and not folder.is_symlink():
            folder.rename(tmp_path / "away")
            folder.symlink_to(kept.root / "nsys")
        return found

    monkeypatch.setattr(_removal.os, "lstat", swapped)
    assert "nsys: a link or a file has replaced the folder" in " ".join(remove(old))
    monkeypatch.undo()
    assert (kept.root / "nsys/summary_stats.csv").exists()
    assert mine.manifest.exists()
