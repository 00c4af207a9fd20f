"""Names of the files that aorta writes below a run, a submission and an earlier report."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from aorta.artefacts.files import entries, walk

_BLOCK = 512
"""Unit in which a file's blocks are counted."""
_TEMPORARY = r"\.[^/]+\.\w{8}"
"""A file that was being written when the writer died."""
_NODE = "|".join(
    (
        r"(info|status|standstill|stops|monitor_status)\.json", r"\.reserve", r"(gpu|cpu)_monitor\.csv",
        r"summary_stats\.csv", r"traces/(rank_\d+|reduction)\.json", r"logs/[\w-]+\.log",
        r"logs/rank\d+/(stdout\.log|stderr\.log|error\.json)",
        r"logs/[^/]+_[^/]+/attempt_\d+/\d+/(stdout\.log|stderr\.log|error\.json)", _TEMPORARY,
    )
)  # fmt: skip
_RUN = "|".join(
    (
        r"(manifest|session|status|planned|injected|profiling_analysis|rank_\d+_(instrument|flight))\.json",
        r"config\.yaml", r"job\.sbatch", r"(metrics|gpu_monitor|cpu_monitor)\.csv",
        r"rank_\d+_metrics\.jsonl", r"sacct_summary\.txt", r"job_metadata\.txt",
        r"profiling_report\.(txt|html)", r"profiling_analysis\.(png|svg)",
        _TEMPORARY, rf"nodes/node\d+/({_NODE})",
        r"(nsys|rocprof)/summary_stats\.csv", r"nsys/(private/)?[^/]*rank\d+[^/]*\.(sqlite|nsys-rep|qdstrm)",
        r"rocprof/[^/]*rank\d+[^/]*\.(csv|json|db|pftrace|otf2)",
        r"torch_profiler/(rank_?\d+/)?[^/]*trace\.json(\.gz)?", r"checkpoints/epoch_\d+\.pt",
    )
)  # fmt: skip
RUN = re.compile(rf"((attempt_\d+|earlier_\w+)/)?({_RUN})")
"""Paths below a run, an earlier attempt's among them."""
_RUN_FOLDER = re.compile(r"nodes|nsys|rocprof|torch_profiler|checkpoints|attempt_\d+|earlier_\w+")
SUBMISSION = re.compile(
    r"job_ids\.txt|jobs\.jsonl|sweep\.json|((cpu_)?[\w-]*\d+node|aggregate)\.(yaml|sbatch)"
    r"|points/[\w-]+/\d+\.yaml|local/\d+_[\w-]+\.(out|err|pkl|sh)|local/\d+_submission\.sh|" + _TEMPORARY
)
"""Paths below a submission."""
_NAMES = r"(BOTTLENECK|SWEEP)_ANALYSIS"
REPORT = re.compile(
    rf"{_NAMES}\.(md|json|html)|(bottleneck|sweep)_analysis/[\w.-]+\.(png|svg|md|csv)|{_TEMPORARY}"
)
"""Paths below an earlier report."""


def holds_run(folder: Path) -> bool:
    """Return whether `folder` holds something of a run by its name: any folder can be called run_7."""
    return any(RUN.fullmatch(path.name) or _RUN_FOLDER.fullmatch(path.name) for path in entries(folder))


def is_own_file(found: os.stat_result) -> bool:
    """Return whether what `lstat` found is a regular file of this user's, and no link to one."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def is_own_folder(root: Path, folder: Path) -> bool:
    """Return whether `folder` is this user's, and no link leads to it on the way from `root`."""
    try:
        found = folder.lstat()
        straight = folder.resolve() == root.resolve() / folder.relative_to(root)
    except (OSError, ValueError, RuntimeError):
        return False
    return straight and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def own_bytes(root: Path) -> int:
    """Return the bytes that this user's files below `root` take, without links, holes and files of other
    users.
    """
    total = 0
    for path in walk(root):
        with contextlib.suppress(OSError):
            found = path.lstat()
            total += min(found.st_size, _BLOCK * found.st_blocks) if is_own_file(found) else 0
    return total
