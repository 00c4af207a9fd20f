"""Archives and packed files, and the reasons why named files are of no use."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aorta.readers.unpacked import unpacked
from aorta.readers.unused import why_unused

FILES = {"rank0.json": b"first", "folder/rank1.json": b"second"}


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path) -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:" + path.suffix[1:]) as archive:
        for name, content in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz", "a.tar.bz2"])
def test_archives_become_folders(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / name) if name.endswith("zip") else tarred(tmp_path / name)
    with unpacked([path]) as found:
        (folder,) = found.paths
        assert contents(folder) == FILES
        assert found.named(f"{folder}/rank0.json: broken") == f"{path}/rank0.json: broken"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "pack"),
    [("t.json.xz", lzma.compress), ("t.json.bz2", bz2.compress), ("t.csv.gz", gzip.compress)],
)
def test_packed_files_become_files(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / name).write_bytes(pack(b"content"))
    with unpacked([tmp_path / name]) as found:
        assert [(path.name, path.read_bytes()) for path in found.paths] == [
            (name.rpartition(".")[0], b"content")
        ]


def test_plain_files_and_traces_of_gzip_stay(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"{}")
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b"{}"))
    paths = [tmp_path / "t.json", tmp_path / "t.json.gz", tmp_path / "gone.json"]
    with unpacked(paths) as found:
        assert (found.paths, found.problems) == (paths, [])


def test_packed_files_below_a_folder_are_added(tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip")
    zipped(tmp_path / "weights.pt")  # torch.save writes zip archives
    with unpacked([tmp_path]) as found:
        assert found.paths[0] == tmp_path
        assert [contents(path) for path in found.paths[1:]] == [FILES]


@pytest.mark.parametrize("name", ["../../escaped.json", "/escaped.json", "a/../../escaped.json"])
def test_members_stay_inside(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, b"x")
    with unpacked([tmp_path / "a.zip"]) as found:
        (folder,) = found.paths
        assert [path.name for path in folder.rglob("*.json")] == ["escaped.json"]


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04broken", b"\xfd7zXZ\x00broken", b"BZh9broken", b"\x28\xb5\x2f\xfdx", b"Rar!x"]
)
def test_what_cannot_be_unpacked_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with unpacked([tmp_path / "a.bin"]) as found:
        assert [problem.file for problem in found.problems] == [str(tmp_path / "a.bin")]
        assert found.paths == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"", "it is empty"),
        ("a.json", b" \n\0", "blanks"),
        ("a.json", b"<!DOCTYPE html><html>", "web page"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("a.json", b'{"schema_version": 1, "verdict": {}}', '["schema_version", "verdict"]'),
        ("a.pkl", b"\x80\x04\x95", "pickle"),
        ("a.qdstrm", b"\x00\x01\x02", "QdstrmImporter"),
        ("a.csv", b"Name,Calls\nk,1\n", "Name,Calls"),
        ("a.log", b"step 1 loss 2.5\n", "step 1 loss 2.5"),
        ("a.bin", bytes(range(128, 256)), "not known"),
    ],
)
def test_the_reason_is_the_true_one(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert reason in why_unused(tmp_path / name)
