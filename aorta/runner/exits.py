"""How each rank ended, by torchrun's summary and the files that the ranks left."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from aorta.artefacts.layout import NodeDir
from aorta.artefacts.records import RankExit
from aorta.runner.processes import decode_exit

_RANK = re.compile(r"^\s+rank\s*: (\d+) \(local_rank: \d+\)")
_CODE = re.compile(r"^\s+exitcode\s*: (-?\d+) \(pid: \d+\)")
_ROOT = re.compile(r"^Root Cause \(first observed failure\):")
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*)")
"""torch puts the rank before each line of a traceback."""
_TAIL_BYTES = 1 << 16
_LONGEST = 300


def parse_summary(lines: Iterable[str]) -> tuple[dict[int, int], int | None]:
    """({rank: returned code}, rank that failed first) of torchrun's closing summary; empty and None without
    one.

    Lines of the ranks carry a prefix and so are never taken for the summary.
    """
    codes: dict[int, int] = {}
    rank: int | None = None
    root: int | None = None
    in_root = False
    for line in lines:
        if _ROOT.match(line):
            in_root = True
        elif match := _RANK.match(line):
            rank = int(match[1])
            root = rank if in_root and root is None else root
        elif (match := _CODE.match(line)) and rank is not None:
            codes[rank] = int(match[1])
    return codes, root


def collect_logs(node: NodeDir, token: str, first_rank: int, processes: int) -> None:
    """Move each rank's output from torchrun's own folders to `logs/rank<r>/`."""
    for folder in node.logs.glob(f"{token}_*"):
        for local in range(processes):
            source, target = folder / "attempt_0" / str(local), node.logs / f"rank{first_rank + local}"
            if source.is_dir() and not target.exists():
                source.rename(target)
        shutil.rmtree(folder, ignore_errors=True)


def rank_exits(
    lines: Sequence[str], code: int, node: NodeDir, first_rank: int, processes: int
) -> tuple[list[RankExit], int | None]:
    """One record a rank, and the rank that failed first.

    Args:
        lines: torchrun's output.
        code: its returned code; 0 says that every rank returned 0.
        node: folder whose `logs/rank<r>/` hold the ranks' output.
        first_rank: of this node.
        processes: ranks of this node.
    """
    codes, root = parse_summary(lines)
    exits = []
    for rank in range(first_rank, first_rank + processes):
        returned = 0 if code == 0 else codes.get(rank)
        exit_code, name = decode_exit(returned) if returned is not None else (None, None)
        error = None if code == 0 else error_line(node.logs / f"rank{rank}")
        exits.append(RankExit(rank=rank, exit_code=exit_code, signal=name, error=error))
    return exits, root


def error_line(folder: Path) -> str | None:
    """First line of the error that a rank recorded, else the last line of its output that names an
    exception.
    """
    with contextlib.suppress(OSError, ValueError, UnicodeDecodeError):
        message = json.loads((folder / "error.json").read_text()).get("message")
        if isinstance(message, dict):
            message = message.get("message")
        if isinstance(message, str) and message.strip():
            return message.strip().splitlines()[0][:_LONGEST]
    found = [match[1] for line in tail(folder / "stderr.log") if (match := _ERROR.match(line))]
    return found[-1][:_LONGEST] if found else None


def tail(path: Path) -> list[str]:
    """The last lines (64 KiB) of a text file; none where it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def describe_exit(item: RankExit) -> str:
    """`rank 3 was killed by SIGKILL`, `rank 3 exited with 1: ValueError: ...`."""
    if item.exit_code is None and item.signal is not None:
        words = f"rank {item.rank} was killed by {item.signal}"
    else:
        words = f"rank {item.rank} exited with {item.exit_code}"
    return f"{words}: {item.error}" if item.error else words
