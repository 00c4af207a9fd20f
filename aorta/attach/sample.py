"""Samples the stacks of processes with py-spy, which reads their memory and does not stop them."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from aorta.artefacts.attached import Frame, NodeView, ProcessView, Role, StackShare
from aorta.artefacts.names import RUN_DIR
from aorta.attach.gpus import gpus_of
from aorta.attach.processes import TorchProcess, Work, permission_words, work_of
from aorta.attach.recorders import recorder_of
from aorta.errors import RunError

RATE_HZ = 20
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_STARTING_S = 20.0
_LOADER = "_worker_loop"
_LAUNCHERS = re.compile(
    r"(?:^|/)(?:torch/distributed/(?:elastic/|run\.py|launcher/)|torch/multiprocessing/spawn\.py"
    r"|accelerate/commands/|deepspeed/launcher/)"
)
_CHILDREN = re.compile(r"(?:^|/)subprocess\.py$")
"""A program without a rank that waits for its children is a launcher; a rank may run a compiler."""


def node_view(processes: Sequence[TorchProcess], seconds: float, *, recorders: bool = False) -> NodeView:
    """All these processes, watched at the same time for `seconds`.

    Args:
        processes: of this node.
        seconds: length of the watch.
        recorders: ask for flight recorders, too, where a process offers them.

    Raises:
        RunError: py-spy is not installed.
    """
    program = _py_spy()
    host = socket.gethostname()
    pids = [process.pid for process in processes]
    before = work_of(pids)
    with contextlib.ExitStack() as kept:
        # Files without a name: nothing stays behind, also where this process is killed.
        files = [kept.enter_context(tempfile.TemporaryFile()) for _ in pids]
        running = [
            _start(program, pid, seconds, file.fileno()) for pid, file in zip(pids, files, strict=True)
        ]
        problems = [_end(child, seconds) for child in running]
        after, gpus = work_of(pids), gpus_of(processes)
        texts = [_text(file) for file in files]
    views = [
        _view(process, host, seconds, parse(text, process.pid), problem=problem)
        for process, problem, text in zip(processes, problems, texts, strict=True)
    ]
    views = [msgspec.structs.replace(view, gpu=gpus.get(view.pid)) for view in views]
    views = [_with_work(view, before, after) for view in views]
    if recorders:
        of_pid = {process.pid: process for process in processes}
        ranks = {view.pid: recorder_of(of_pid[view.pid]) for view in views if view.role == "rank"}
        views = [msgspec.structs.replace(view, recorder=ranks.get(view.pid)) for view in views]
    return NodeView(host=host, processes=views)


def _with_work(view: ProcessView, before: Mapping[int, Work], after: Mapping[int, Work]) -> ProcessView:
    start, end = before.get(view.pid), after.get(view.pid)
    if start is None or end is None:
        return view
    moved = None
    if start.io_bytes is not None and end.io_bytes is not None:
        moved = max(end.io_bytes - start.io_bytes, 0)
    used = max(end.cpu_seconds - start.cpu_seconds, 0.0)
    return msgspec.structs.replace(view, cpu_seconds=used, io_bytes=moved, runs=start.runs and end.runs)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise RunError(
            "py-spy is not installed together with aorta", "pip install py-spy, or run make setup again"
        )
    return found


def _start(program: str, pid: int, seconds: float, output: int) -> subprocess.Popen[str]:
    command = [
        *(program, "record", "--pid", str(pid), "--duration", str(max(1, round(seconds)))),
        *("--rate", str(RATE_HZ), "--format", "raw", "--nonblocking", "--idle", "--threads"),
        *("--full-filenames", "--output", f"/proc/self/fd/{output}"),
    ]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=(output,)
    )


def _end(child: subprocess.Popen[str], seconds: float) -> str | None:
    """The reason why no stacks were sampled; None if they were."""
    try:
        _, errors = child.communicate(timeout=seconds + _STARTING_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"py-spy gave no answer within {seconds + _STARTING_S:.0f} s"
    if child.returncode == 0:
        return None
    words = " ".join(errors.split())
    if "ermission" in words or "EPERM" in words or "Operation not permitted" in words:
        return permission_words()
    return words[-300:] or f"py-spy ended with {child.returncode}"


def _view(
    process: TorchProcess,
    host: str,
    seconds: float,
    stacks: list[StackShare],
    *,
    problem: str | None,
) -> ProcessView:
    return ProcessView(
        pid=process.pid,
        host=host,
        command=process.command,
        rank=process.number("RANK"),
        world_size=process.number("WORLD_SIZE"),
        parent=process.parent,
        role=role_of(stacks, ranked=process.number("RANK") is not None, child=process.child_of_rank),
        program=process.program,
        step=process.step,
        stacks=stacks,
        seconds=seconds,
        cpu_seconds=None,
        problem=problem if problem is not None or stacks else "no stack of its main thread could be read",
        run_dir=process.environment.get(RUN_DIR),
    )


def parse(text: str, pid: int) -> list[StackShare]:
    """The stacks of the main thread in py-spy's raw output, most frequent first."""
    found: dict[tuple[Frame, ...], int] = {}
    for line in text.splitlines():
        body, _, count = line.rpartition(" ")
        head, *rest = body.split(";")
        if not rest or not count.isdigit() or not _is_main(head, pid):
            continue
        frames = tuple(frame for word in rest if (frame := _frame(word)) is not None)
        if frames:
            found[frames] = found.get(frames, 0) + int(count)
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return [StackShare(frames=list(frames), samples=samples) for frames, samples in ordered]


def _is_main(head: str, pid: int) -> bool:
    return head.endswith(": MainThread") or head in (f"thread ({pid})", f"thread ({pid:#x})")


def _frame(word: str) -> Frame | None:
    match = _FRAME.match(word.strip())
    return (match["function"], match["file"], int(match["line"])) if match else None


def role_of(stacks: Sequence[StackShare], *, ranked: bool, child: bool = False) -> Role:
    """The role of a process: what most of its stacks say.

    Args:
        stacks: most frequent first.
        ranked: its environment says a rank.
        child: a rank started it.
    """
    if not stacks:
        return "other"
    frames = stacks[0].frames
    if any(function.rsplit(".", 1)[-1] == _LOADER for function, _, _ in frames):
        return "loader"
    innermost = [file for _, file, _ in frames[-6:]]
    if any(_LAUNCHERS.search(file) for file in innermost):
        return "launcher"
    if not ranked and any(_CHILDREN.search(file) for file in innermost):
        return "launcher"
    return "other" if child else "rank"
