"""Python, storage, limits and names of this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import locale
import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from aorta import __version__
from aorta.doctor.records import Check, State
from aorta.launch.storage import probe as probe_storage
from aorta.launch.submission import find_aorta
from aorta.monitors import cgroup
from aorta.runner import network
from aorta.runner.describe import cpus_usable
from aorta.units import BYTES_PER_GIB

SUPPORTED = ((3, 10), (3, 13))
LEAST_TMP_GIB = 2.0
"""A profiler keeps its stream there until it is a report; full, it can take the program down with it."""
LEAST_RESULTS_GIB = 1.0
LEAST_SHM_GIB = 0.5
"""Loader workers and NCCL hand over through it; containers often have 64 MiB."""
LEAST_FILES = 4096

_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def python() -> list[Check]:
    """This interpreter, and the `aorta` command that jobs call."""
    version = sys.version_info[:2]
    text = f"{platform.python_version()} ({sys.executable}), aorta {__version__}"
    value = {"python": platform.python_version(), "executable": sys.executable, "aorta": __version__}
    if not SUPPORTED[0] <= version <= SUPPORTED[1]:
        known = " to ".join(".".join(map(str, end)) for end in SUPPORTED)
        return [
            Check(
                "python",
                "note",
                f"{text}: aorta was tested with {known}",
                "set PYTHON to a tested version for make setup",
                value,
            )
        ]
    value["command"] = " ".join(find_aorta())
    return [Check("python", "ok", text, value=value)]


def packages(extra: str | None, name: str) -> list[Check]:
    """The packages that aorta declares: those of `extra`, or (None) those that it always needs."""
    declared = importlib.metadata.requires("aorta") or []
    mark = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra or '')}['\"]")
    wanted = [line for line in declared if (mark.search(line) if extra else "extra ==" not in line)]
    names = [match[0] for line in wanted if (match := _REQUIREMENT.match(line))]
    absent = sorted(_absent(names))
    if absent:
        hint = f"run make setup, or {sys.executable} -m pip install {' '.join(absent)}"
        return [Check(name, "missing", f"not installed: {', '.join(absent)}", hint, {"missing": absent})]
    return [Check(name, "ok", f"all {len(names)} installed", value={"missing": []})]


def _absent(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name


def results_folder(path: Path) -> list[Check]:
    """Checks that results can be written, how much room there is, and if the file system is a shared one."""
    storage = probe_storage(path)
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / BYTES_PER_GIB
    value = {
        "path": str(path),
        "file_system": storage.fs_type,
        "shared": storage.shared,
        "writable": storage.writable,
        "free_gib": round(free, 1),
    }
    shared = {True: "a shared file system", False: "only on this machine", None: "not known to be shared"}
    text = f"{path}: {free:.1f} GiB free, {storage.fs_type or 'unknown type'}, {shared[storage.shared]}"
    if not storage.writable:
        return [
            Check("results", "missing", f"{path} is not writable", "choose a folder with --results", value)
        ]
    if free < LEAST_RESULTS_GIB:
        return [Check("results", "note", text, "free some space: traces of a run can take gigabytes", value)]
    return [Check("results", "ok", text, value=value)]


def temporary_folder() -> list[Check]:
    """Room in the temporary folder, and whether programs may run from it."""
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free / BYTES_PER_GIB
    noexec = bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    value = {"path": str(folder), "free_gib": round(free, 1), "noexec": noexec}
    text = f"{folder}: {free:.1f} GiB free{', mounted noexec' if noexec else ''}"
    if free < LEAST_TMP_GIB:
        hint = "set TMPDIR to a folder with more room: if it is full, a profiler can end the training"
        return [Check("tmp", "note", text, hint, value)]
    if noexec:
        hint = "set TMPDIR to another folder: nsys, triton and inductor run programs from TMPDIR"
        return [Check("tmp", "note", text, hint, value)]
    return [Check("tmp", "ok", text, value=value)]


def shared_memory(folder: Path = Path("/dev/shm")) -> list[Check]:  # noqa: S108  the one place there is
    """Size of the shared memory that loader workers and NCCL use."""
    if not folder.is_dir():
        return [
            Check(
                "shm", "note", f"no {folder}", "set dataloader.num_workers=0: loaders with workers will fail"
            )
        ]
    usage = shutil.disk_usage(folder)
    free = usage.free / BYTES_PER_GIB
    value = {"free_gib": round(free, 2)}
    text = f"{folder}: {free:.2f} GiB free"
    if free < LEAST_SHM_GIB:
        hint = "start the container with --shm-size=8g or --ipc=host; otherwise set dataloader.num_workers=0"
        return [Check("shm", "note", text, hint, value)]
    return [Check("shm", "ok", text, value=value)]


def limits() -> list[Check]:
    """Open files, CPUs and memory that this session may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    short = soft not in (-1, resource.RLIM_INFINITY) and soft < LEAST_FILES
    files = Check(
        "open files",
        "note" if short else "ok",
        f"{'no limit' if soft in (-1, resource.RLIM_INFINITY) else soft} (hard limit {hard})",
        f"run ulimit -n {min(hard, 65536) if hard > 0 else 65536} before large jobs" if short else "",
        {"soft": soft, "hard": hard},
    )
    cpus, machine = cpus_usable(), os.cpu_count()
    memory = cgroup.memory_limit_bytes(cgroup.find_group("memory"))
    said = f", memory limit {memory / BYTES_PER_GIB:.1f} GiB" if memory is not None else ", no memory limit"
    text = f"{cpus} of {machine} usable{said}"
    value = {"usable": cpus, "machine": machine, "memory_limit_bytes": memory}
    few = machine is not None and cpus < machine
    return [files, Check("cpus", "note" if few else "ok", text, value=value)]


def names() -> list[Check]:
    """Checks that this host's name leads to an address, and lists the addresses for other nodes."""
    host = socket.gethostname()
    found, own = network.resolve(host), network.own_addresses()
    value = {"host": host, "resolves_to": found, "addresses": own}
    reach = f"reachable at {', '.join(own)}" if own else "no address except loopback"
    if not found:
        hint = f"add {host} to /etc/hosts or DNS; torch's rendezvous looks up this name"
        return [Check("host name", "note", f"{host} does not resolve; {reach}", hint, value)]
    if not own:
        hint = "use only this machine: ranks on other nodes cannot reach it"
        return [Check("host name", "note", f"{host}: {reach}", hint, value)]
    return [Check("host name", "ok", f"{host}: {reach}", value=value)]


def language() -> list[Check]:
    """Character set and time zone, which decide how text and nvidia-smi's times are read."""
    encoding = locale.getpreferredencoding(do_setlocale=False)
    zone = f"{time.strftime('%Z')} ({time.strftime('%z')})"
    value = {"encoding": encoding, "time_zone": time.strftime("%z")}
    text = f"{encoding}, time zone {zone}"
    if encoding.replace("-", "").upper() != "UTF8":
        return [Check("locale", "note", text, "run export LC_ALL=C.UTF-8", value)]
    return [Check("locale", "ok", text, value=value)]


def programs(wanted: Sequence[str], name: str, hint: str) -> list[Check]:
    """Checks that programs are in PATH."""
    absent = [program for program in wanted if shutil.which(program) is None]
    state: State = "missing" if absent else "ok"
    text = f"not in PATH: {', '.join(absent)}" if absent else f"{', '.join(wanted)} in PATH"
    return [Check(name, state, text, hint if absent else "", {"missing": absent})]
