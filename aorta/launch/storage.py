"""Can the nodes of a job see the results folder? Decided by the type of its file system.

A type that only ever lives on one machine (ext4, xfs, overlay, tmpfs, ...) cannot be shared as such. It is
fine when every node that may run the job *is* this machine, which `aorta.launch.site` finds out; and the user
may know better (an ext4 disk that the other nodes mount by NFS), which is what --assume-shared is for. A type
in neither list is taken, and said to be unknown: to refuse an unusual parallel file system would be a guess.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

SHARED_TYPES = frozenset(
    "9p afs beegfs ceph cifs coda gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2 "
    "smb2 smb3 smbfs virtiofs vxfs wekafs".split()
)
SHARED_FUSE = frozenset("beegfs ceph ceph-fuse dfuse gcsfuse glusterfs juicefs s3fs seaweedfs sshfs".split())
LOCAL_TYPES = frozenset(
    "aufs bcachefs btrfs devtmpfs ext2 ext3 ext4 f2fs iso9660 jfs nilfs2 ntfs ntfs3 overlay overlayfs "
    "ramfs reiserfs rootfs squashfs tmpfs udf vfat exfat xfs zfs".split()
)


@dataclass(frozen=True, slots=True)
class Storage:
    """The results folder as the submitting machine sees it."""

    path: Path
    writable: bool
    fs_type: str | None
    mount_point: str | None

    @property
    def shared(self) -> bool | None:
        """True if other machines can see it, by the type of its file system. None if that is unknown."""
        if self.fs_type is None:
            return None
        if self.fs_type in SHARED_TYPES or self.fs_type.removeprefix("fuse.") in SHARED_FUSE:
            return True
        return False if self.fs_type in LOCAL_TYPES else None


def probe(path: Path) -> Storage:
    """The storage that holds `path`, which need not exist yet. Creates nothing."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return Storage(path, writable, None, None)
    found = filesystem_of(existing.resolve(), mounts)
    return Storage(path, writable, *(found or (None, None)))


def filesystem_of(path: Path, mountinfo: str) -> tuple[str, str] | None:
    """(type, mount point) of the file system that holds the resolved `path`, by the text of mountinfo(5).

    The longest mount point above the path decides; of several mounts on one point the last hides the others.
    """
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        mount, _, rest = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 5 or not rest:
            continue
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4])
        inside = path == Path(point) or Path(point) in path.parents
        if inside and (best is None or len(point) >= len(best[1])):
            best = (rest.split()[0], point)
    return best
