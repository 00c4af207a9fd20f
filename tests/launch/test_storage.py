"""Which file system holds a folder, and whether other machines see it."""

from pathlib import Path

import pytest

from aorta.launch.storage import Storage, filesystem_of, probe

MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /tmp rw - tmpfs tmpfs rw
23 21 0:6 / /home rw shared:2 master:3 - nfs4 server:/home rw
24 23 0:7 / /home/me/scratch\040disk rw - lustre mgs:/scratch rw
25 21 0:8 / /over rw - xfs /dev/sdb rw
26 25 0:9 / /over rw - beegfs beegfs rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("ext4", "/")),
        ("/home2/x", ("ext4", "/")),
        ("/tmp/x/y", ("tmpfs", "/tmp")),
        ("/home/me", ("nfs4", "/home")),
        ("/home/me/scratch disk/run", ("lustre", "/home/me/scratch disk")),
        ("/over/x", ("beegfs", "/over")),
    ],
)
def test_the_longest_and_last_mount_decides(path: str, expected: tuple[str, str]) -> None:
    assert filesystem_of(Path(path), MOUNTS) == expected


def test_no_mounts_say_nothing() -> None:
    assert filesystem_of(Path("/x"), "broken line\n") is None


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        ("nfs4", True),
        ("lustre", True),
        ("gpfs", True),
        ("fuse.ceph", True),
        ("ext4", False),
        ("overlay", False),
        ("tmpfs", False),
        ("newfs", None),
        (None, None),
    ],
)
def test_what_a_type_says(kind: str | None, shared: bool | None) -> None:
    assert Storage(Path("/x"), True, kind, "/").shared is shared


def test_a_folder_that_will_be_made(tmp_path: Path) -> None:
    storage = probe(tmp_path / "a" / "b")
    assert storage.writable
    assert storage.fs_type is not None
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert not probe(tmp_path / "a" / "b").writable
