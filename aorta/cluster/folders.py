"""The folder of a cluster: its record, which of its entries a cluster made, how those are removed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from aorta.artefacts.files import owner_name
from aorta.artefacts.io import read_json, write_json
from aorta.cluster.config import ClusterDir, ClusterError, ClusterSettings
from aorta.cluster.daemons import DaemonProcess
from aorta.errors import ArtefactError

MARK = "aorta cluster"
"""`made_by` of every record: a folder without it is never removed."""
_LOG = re.compile(r"(munged|mariadbd|slurmdbd|slurmctld|node\d+(-steps)?)\.log")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Content of `cluster.json`: rewritten as each daemon starts, so that a broken start can be undone.

    Without processes it stands beside the logs of a cluster that has ended.
    """

    settings: ClusterSettings
    processes: list[DaemonProcess] = field(default_factory=list)
    made_by: str = MARK


def refuse_foreign(folder: ClusterDir) -> None:
    """Return where the folder is new, empty or a cluster's: only such a folder is written to or removed.

    Raises:
        ClusterError: it is another one, or cannot be read.
    """
    root, hint = folder.root, "give a new folder with --dir"
    try:
        if not root.exists() and not root.is_symlink():
            return
        entries = list(root.iterdir())
    except OSError as error:
        raise ClusterError(f"{root}: {error.strerror}", hint) from error
    if not entries:
        return
    try:
        read_json(folder.record, ClusterRecord)
        # The default of `ClusterRecord.made_by` is for writing: what a file does not say is not assumed.
        if read_json(folder.record, dict).get("made_by") == MARK:
            return
        reason = f'{folder.record} does not say "made_by": "{MARK}"'
        hint = f"{hint}; or, if an earlier version of aorta made this folder, add that line to the file"
    except ArtefactError as error:
        reason = error.message
    raise ClusterError(f"{root} exists and is not the folder of a cluster: {reason}", hint)


def refuse_anothers(folder: ClusterDir) -> None:
    """Return where this user may start and end the cluster: its owner and root may.

    Raises:
        ClusterError: another user made it.
    """
    if not folder.record.exists():
        return
    owner = folder.record.stat().st_uid
    if os.geteuid() in (0, owner):
        return
    name = owner_name(owner)
    end = "sudo make cluster-down" if owner == 0 else f"ask {name} for `make cluster-down`"
    raise ClusterError(
        f"{folder.root} is the cluster of {name}",
        f"to use it, run export SLURM_CONF={shlex.quote(str(folder.slurm_conf))}; to end it: {end}",
    )


def foreign(folder: ClusterDir) -> list[str]:
    """Names of the entries that no cluster makes, below the folder and its logs."""
    found = []
    with contextlib.suppress(OSError):
        ours = {path.name for path in _made(folder)}
        found += sorted(entry.name for entry in folder.root.iterdir() if entry.name not in ours)
    with contextlib.suppress(OSError):
        found += sorted(f"logs/{entry.name}" for entry in folder.logs.iterdir() if not _is_log(entry))
    return found


def remove(folder: ClusterDir, keep_logs: bool) -> None:
    """Remove what a cluster makes, then the folder if it is empty; with `keep_logs`, logs and record stay."""
    if not folder.root.is_dir() or not folder.record.is_file():
        return
    if keep_logs:
        write_json(folder.record, ClusterRecord(read_json(folder.record, ClusterRecord).settings))
    kept = {folder.record, folder.logs} if keep_logs else {folder.logs}
    for path in _made(folder):
        if path not in kept:
            _remove_entry(path)
    if keep_logs:
        return
    if folder.logs.is_symlink():
        folder.logs.unlink()
    elif folder.logs.is_dir():
        for path in folder.logs.iterdir():
            if _is_log(path):
                path.unlink()
    for path in (folder.logs, folder.root):
        with contextlib.suppress(OSError):
            path.rmdir()


def _remove_entry(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _made(folder: ClusterDir) -> list[Path]:
    """Entries of the folder that a cluster makes; the record, which says so, comes last."""
    return [
        folder.slurm_conf, folder.cgroup_conf, folder.slurmdbd_conf, folder.hosts, folder.run, folder.state,
        folder.spool, folder.munge, folder.mysql, folder.logs, folder.record,
    ]  # fmt: skip


def _is_log(path: Path) -> bool:
    return _LOG.fullmatch(path.name) is not None and (path.is_symlink() or path.is_file())
