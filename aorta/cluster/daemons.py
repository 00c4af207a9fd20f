"""Processes: start one in the background, know it again later, wait for it, end it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.processes import started
from aorta.cluster.config import ClusterError

_POLL_S = 0.05
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A process that is not mistaken for a later one with its id.

    Args:
        name: what it is.
        pid: process id.
        start_ticks: when it started, in clock ticks since boot (proc(5), field 22 of stat).
        boot_id: which boot that was.
    """

    name: str
    pid: int
    start_ticks: int
    boot_id: str

    @property
    def alive(self) -> bool:
        """True if this very process still runs; a zombie does not."""
        return self.boot_id == boot_id() and started(self.pid) == self.start_ticks


def boot_id() -> str:
    """Random id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(name: str, pid: int) -> DaemonProcess | None:
    """The running process `pid`; None where it has ended."""
    ticks = started(pid)
    return None if ticks is None else DaemonProcess(name, pid, ticks, boot_id())


def start(name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> DaemonProcess:
    """Start `argv` in a session of its own, output to `log`.

    Raises:
        ClusterError: it does not exist or ended at once; the message has the end of its log.
    """
    with log.open("ab") as stream:
        try:
            child = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise ClusterError(f"cannot start {name} ({argv[0]}): {error.strerror}") from error
    process = identify(name, child.pid)
    if process is None:
        raise ClusterError(f"{name} ended at once; {tail(log)}")
    return process


def wait_until(
    what: str,
    ready: Callable[[], bool],
    processes: Sequence[DaemonProcess],
    log_of: Callable[[str], Path],
    timeout_s: float,
) -> None:
    """Poll `ready` until it is true.

    Args:
        what: what is waited for, for the message.
        ready: asked again and again.
        processes: those that must stay alive; the last one's log is shown when the time is over.
        log_of: log of a process by its name.
        timeout_s: how long.

    Raises:
        ClusterError: one of `processes` ended first, or the time is over; the message has the end of its log.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        for process in processes:
            if not process.alive:
                raise ClusterError(f"{process.name} ended before {what}; {tail(log_of(process.name))}")
        if time.monotonic() > deadline:
            log = log_of(processes[-1].name)
            raise ClusterError(f"waited {timeout_s:g} s in vain until {what}; {tail(log)}")
        time.sleep(_POLL_S)


def listens(address: tuple[str, int] | Path) -> bool:
    """True if something accepts connections on a TCP address or a Unix socket."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(address) if isinstance(address, Path) else address)
        except OSError:
            return False
    return True


def stop(processes: Iterable[DaemonProcess], grace_s: float = 10) -> None:
    """End `processes` in order: a request, and the kill signal for what is left after `grace_s`."""
    left = [process for process in processes if process.alive]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            if process.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        deadline = time.monotonic() + grace_s
        while left and time.monotonic() < deadline:
            left = [process for process in left if process.alive]
            time.sleep(_POLL_S)


def with_environment(wanted: Mapping[str, str]) -> list[DaemonProcess]:
    """Every process but this one whose environment, as it began, has all of `wanted`.

    An empty value stands for any: `{"SLURM_JOB_ID": ""}` finds what runs in jobs.
    """
    needles = [os.fsencode(f"{key}={value}") for key, value in wanted.items()]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        if all(_has(variables, needle) for needle in needles):
            process = identify("process", int(entry.name))
            if process is not None:
                found.append(process)
    return found


def _has(variables: Sequence[bytes], needle: bytes) -> bool:
    if needle.endswith(b"="):
        return any(item.startswith(needle) for item in variables)
    return needle in variables


def run_to_end(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run `argv` to its end; if that is interrupted, what it started ends with it.

    Raises:
        ClusterError: it failed; the message has what it printed.
    """
    with subprocess.Popen(
        argv,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd="/",
        text=True,
    ) as child:
        try:
            printed = child.communicate()[0]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode != 0:
        raise ClusterError(f"`{argv[0]}` exited {child.returncode}: {printed.strip()}")


def tail(log: Path) -> str:
    """The end of a log, for an error message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{log} could not be read"
    if not lines:
        return f"{log} is empty"
    return "\n    ".join([f"the end of {log}:", *lines[-_TAIL_LINES:]])
