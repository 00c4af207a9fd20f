"""A small trainer that stands still on purpose, or is only slow: what the watch over jobs is checked by.

    python -m aorta.workloads.hang CASE RANK FOLDER

Before it stands still, the rank writes the time into FOLDER/standstill. Cases are in `HANGS` and `SLOW`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, AT = 240, 120
_LONG_S = 600
_SLOW_S = 14.0
_STEP_S = 0.02
_OTHER_SIZE = 4096


def sleeping(folder: Path) -> None:
    """The host sleeps."""
    del folder
    time.sleep(_LONG_S)


def gil_held(folder: Path) -> None:
    """C code keeps the interpreter locked and does not come back."""
    del folder
    ctypes.PyDLL(None).sleep(_LONG_S)


def call_missing(folder: Path) -> None:
    """The rank takes another branch: it waits for a key that is never set, and misses the next exchange."""
    del folder
    store = dist.distributed_c10d._get_default_store()
    store.get("a key that is never set")


def checkpoint_lock(folder: Path) -> None:
    """The rank waits for a lock of the checkpoint that another process holds."""
    path = folder / "checkpoint.lock"
    code = f"""
import fcntl, time
lock = open({str(path)!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(1, flush=True)
time.sleep({_LONG_S})
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def other_collective(folder: Path) -> None:
    """The rank calls a barrier while the others exchange gradients."""
    del folder
    dist.barrier(group=_second_group())


def other_size(folder: Path) -> None:
    """The rank sends more bytes than the others: gloo ends such a job, NCCL waits."""
    del folder
    dist.all_reduce(torch.ones(_OTHER_SIZE))


def killed(folder: Path) -> None:
    """The rank's process is killed."""
    del folder
    os.kill(os.getpid(), signal.SIGKILL)


def compiling(folder: Path) -> None:
    """A child of the rank works, as a compiler does."""
    del folder
    subprocess.run([sys.executable, "-c", _BUSY], check=True)


def validating(folder: Path) -> None:
    """The rank computes."""
    del folder
    end, data = time.monotonic() + _SLOW_S, torch.randn(64, 64)
    while time.monotonic() < end:
        data = torch.tanh(data @ data)


def checkpointing(folder: Path) -> None:
    """The rank writes."""
    end, block = time.monotonic() + _SLOW_S, os.urandom(1 << 20)
    with (folder / "checkpoint.pt").open("wb") as stream:
        while time.monotonic() < end:
            stream.seek(0)
            stream.write(block)
            stream.flush()
            time.sleep(0.05)


_BUSY = f"import time\nend = time.monotonic() + {_SLOW_S}\nwhile time.monotonic() < end: sum(range(10000))"
HANGS: dict[str, Callable[[Path], None]] = {
    "sleeping": sleeping,
    "gil_held": gil_held,
    "call_missing": call_missing,
    "checkpoint_lock": checkpoint_lock,
    "other_collective": other_collective,
    "other_size": other_size,
    "killed": killed,
}
"""Ways in which a rank hangs in its training process; `loader` is one more, in a loader's process."""
SLOW: dict[str, Callable[[Path], None]] = {
    "compiling": compiling,
    "validating": validating,
    "checkpointing": checkpointing,
}
LOADER = "loader"
CASES = (*HANGS, LOADER, *SLOW)
_groups: list[dist.ProcessGroup] = []


def _second_group() -> dist.ProcessGroup:
    return _groups[0]


class _Samples(Dataset[torch.Tensor]):
    """Random samples; one that never comes, where the loader is to stand still."""

    def __init__(self, stuck_at: int | None, folder: Path) -> None:
        self._stuck_at, self._folder = stuck_at, folder

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._stuck_at:
            _mark(self._folder)
            time.sleep(_LONG_S)
        return torch.randn(32)


def _mark(folder: Path) -> None:
    (folder / "standstill").write_text(str(time.time_ns()))


def main() -> None:
    """Train; on the rank that is named, do what the case says at step `AT`."""
    case, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    _groups.append(dist.new_group())
    here = dist.get_rank() == rank
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    samples = _Samples(AT if here and case == LOADER else None, folder)
    for step, batch in enumerate(DataLoader(samples, batch_size=1, num_workers=1)):
        time.sleep(_STEP_S)
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        if here and step == AT and case != LOADER:
            _mark(folder)
            {**HANGS, **SLOW}[case](folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
