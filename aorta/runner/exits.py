"""Finds how each rank ended, by torchrun's summary and the files that the ranks left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from aorta.artefacts import files
from aorta.artefacts.io import give_usual_permissions
from aorta.artefacts.layout import NodeDir
from aorta.artefacts.masking import Masker, here
from aorta.artefacts.records import RankExit
from aorta.runner.processes import Child, decode_exit

_RANK = re.compile(r"^\s+rank\s*: (\d+) \(local_rank: \d+\)")
_CODE = re.compile(r"^\s+exitcode\s*: (-?\d+) \(pid: \d+\)")
_ROOT = re.compile(r"^Root Cause \(first observed failure\):")
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*)")
"""torch puts the rank before each line of a traceback."""
_FATAL = re.compile(r"^(terminate called\b.*|Fatal Python error: .*|  what\(\): .*)")
"""Messages of the C++ and Python runtimes before they abort; rows of a stack may follow."""
_FROM_OUTSIDE = frozenset({"SIGTERM", "SIGKILL", "SIGINT", "SIGHUP"})
_ENDING = ("failed (exitcode", "closing signal", "death signal")
"""torchrun says one of these when it ends ranks, or when one has failed."""
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


def hide_logs(node: NodeDir) -> None:
    """Let only the owner look into the logs until `mask_logs`: ranks write their output there as it is."""
    node.logs.mkdir(parents=True, exist_ok=True)
    node.logs.chmod(0o700)


def mask_logs(node: NodeDir) -> None:
    """Mask the secrets in what the ranks of this node wrote into their own logs, and show the logs."""
    masker = here()
    for path in files.walk(node.logs):
        with contextlib.suppress(OSError):
            if any(masker.line(line) != line for line in files.lines(path)):
                _rewrite(path, masker)
    with contextlib.suppress(OSError):
        give_usual_permissions(node.logs)


def _rewrite(path: Path, masker: Masker) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(masker.line(line) for line in files.lines(path))
            os.fchmod(stream.fileno(), stat.S_IMODE(path.stat().st_mode))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


OTHER_PYTHON = "name a Python that has torch: aorta submit --python PATH; try it: aorta doctor --python PATH"
"""Hint for a module that is missing in the user's own program."""


def rank_exits(
    lines: Sequence[str], code: int, node: NodeDir, first_rank: int, processes: int
) -> tuple[list[RankExit], int | None]:
    """One record per rank, and the rank that failed first.

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
        own = returned not in (None, 0) and name not in _FROM_OUTSIDE
        error = None if code == 0 else error_line(node.logs / f"rank{rank}", last_words=own)
        exits.append(RankExit(rank=rank, exit_code=exit_code, signal=name, error=error))
    return exits, root


def ranks_finished(torchrun: Child, node: NodeDir, token: str, processes: int) -> bool:
    """True if every rank of this node has been started and has returned 0, while torchrun still runs.

    Then torchrun has no child left and has not spoken of a failure: with `--max-restarts 0` it otherwise ends
    itself at once. It waits for the torchruns of the other nodes in native code, which no signal but SIGKILL
    interrupts.
    """
    started = len(list(node.logs.glob(f"{token}_*/attempt_0/*/stderr.log")))
    if started < processes or any(torchrun.said(words) for words in _ENDING):
        return False
    try:
        return not psutil.Process(torchrun.pid).children()
    except psutil.Error:
        return False


def told_to_end(exits: Sequence[RankExit], root: int | None) -> bool:
    """True if the rank that ended first did so by a signal that asks a program to end."""
    return any(item.rank == root and item.signal in ("SIGTERM", "SIGINT", "SIGHUP") for item in exits)


def error_line(folder: Path, *, last_words: bool) -> str | None:
    """First line of the error that a rank recorded, else the last line of its output that names an
    exception or says why the process was aborted.

    Args:
        folder: of the rank's logs.
        last_words: without any of these, take the last line that it wrote: right for a rank that ended by
            itself, misleading for one that was ended from outside.
    """
    with contextlib.suppress(OSError, ValueError, UnicodeDecodeError):
        message = json.loads((folder / "error.json").read_text()).get("message")
        if isinstance(message, dict):
            message = message.get("message")
        if isinstance(message, str) and message.strip():
            return message.strip().splitlines()[0][:_LONGEST]
    lines = tail(folder / "stderr.log")
    found = [match[1] for line in lines if (match := _ERROR.match(line) or _FATAL.match(line))]
    if not found and last_words:
        found = [line.strip() for line in lines if line.strip()]
    return found[-1].strip()[:_LONGEST] if found else None


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
    if item.error is None:
        return words
    missing = "ModuleNotFoundError" in item.error
    return f"{words}: {item.error}" + (f" ({OTHER_PYTHON})" if missing else "")
