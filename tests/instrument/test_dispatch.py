"""All-reduces of one rank of gloo that are watched, and what of torch is left as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from aorta.instrument.dispatch import Dispatch


class Count:
    def __init__(self) -> None:
        self.calls = 0

    def noted(self, tensors: list[torch.Tensor], begin: Callable[[], Any]) -> Any:
        del tensors
        self.calls += 1
        return begin()


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def dispatch() -> Iterator[Dispatch]:
    made = Dispatch()
    yield made
    if made._library is not None:
        made._library._destroy()


def test_only_the_all_reduces_of_a_watched_group_are_seen(
    world: dist.ProcessGroup, dispatch: Dispatch
) -> None:
    count, other, tensor = Count(), dist.new_group([0]), torch.full((2,), 3.0)
    dispatch.watch(world, count)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=other)
    assert (count.calls, tensor.tolist()) == (1, [3, 3])
    dispatch.watch(world, None)
    dist.all_reduce(tensor)
    assert count.calls == 1


def test_while_nobody_watches_torch_calls_what_it_called_before(
    world: dist.ProcessGroup, dispatch: Dispatch
) -> None:
    if not hasattr(torch._C, "_dispatch_get_computed_kernel_for_dispatch_key"):
        pytest.skip("older torch goes on asking")
    operator = "c10d::allreduce_", "AutogradCPU"
    for _ in range(2):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(*operator)
        dispatch.watch(world, count := Count())
        assert torch._C._dispatch_has_kernel_for_dispatch_key(*operator)
        dispatch.watch(world, None)
    assert count.calls == 0


def test_a_kernel_of_the_programs_own_stays(world: dist.ProcessGroup, dispatch: Dispatch) -> None:
    own: list[int] = []

    def kernel(*args: Any) -> Any:
        own.append(1)
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.c10d.allreduce_.default(*args)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "AutogradCPU")
    try:
        for watcher in (count := Count(), None):
            dispatch.watch(world, watcher)
            dist.all_reduce(torch.ones(2))
    finally:
        library._destroy()
    assert (len(own), count.calls) == (2, 0)


def test_what_the_watcher_raises_is_raised_by_the_call(world: dist.ProcessGroup, dispatch: Dispatch) -> None:
    class Broken(Count):
        def noted(self, *args: Any) -> Any:
            raise ValueError("mine")

    broken, count = Broken(), Count()
    dispatch.watch(world, broken)
    with pytest.raises(ValueError, match="mine"):
        dist.all_reduce(torch.ones(2))
    dispatch.watch(world, count)
    dist.all_reduce(torch.ones(2))
    assert count.calls == 1


def test_who_lets_go_of_a_watcher_lets_go_of_its_group(world: dist.ProcessGroup, dispatch: Dispatch) -> None:
    group: Any = dist.ProcessGroup(0, 1)  # type: ignore[call-arg]
    count = Count()
    dispatch.watch(group, count)
    gone = weakref.ref(group)
    del group, count
    gc.collect()
    assert gone() is None


THREADS = """
import ctypes, sys, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from aorta.instrument.dispatch import Dispatch

class Watcher:
    def noted(self, tensors, begin):
        return begin()

libc = ctypes.PyDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
dispatch, watcher, tensor, done = Dispatch(), Watcher(), torch.ones(2), []
sys.setswitchinterval(5)  # a thread that goes into C++ hands the interpreter over, and nobody takes it away
for _ in range(40):
    dispatch.watch(dist.group.WORLD, watcher)
    user = threading.Thread(target=lambda: done.append(dist.all_reduce(tensor)))
    user.start()
    until = time.perf_counter() + 0.005
    while time.perf_counter() < until:
        pass  # by now it waits for the interpreter, on its way to us
    dispatch.watch(dist.group.WORLD, None)
    for size in range(8, 520, 8):  # what was freed is overwritten
        for _ in range(8):
            libc.memset(libc.malloc(size), 0x5A, size)
    user.join()
print(len(done))
dist.destroy_process_group()
"""


def test_a_thread_of_the_program_on_its_way_to_us_arrives(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "40\n"), ran.stderr
