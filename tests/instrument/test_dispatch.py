"""Calls of one rank of gloo that are watched, and what of torch is left as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import library as torch_library
from torch._C._distributed_c10d import HashStore

from aorta.instrument.dispatch import _BELOW, Called, Dispatch
from tests.support.recorders import forget_dispatch


class Count:
    def __init__(self) -> None:
        self.seen: list[Called] = []

    @property
    def calls(self) -> int:
        return len(self.seen)

    def noted(self, call: Called, begin: Callable[[], Any]) -> None:
        self.seen.append(call)
        begin()


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def dispatch() -> Iterator[Dispatch]:
    forget_dispatch()
    made = Dispatch()
    yield made
    if made._library is not None:
        made._library._destroy()


def test_calls_of_every_group_are_seen(world: dist.ProcessGroup, dispatch: Dispatch) -> None:
    count, other, tensor = Count(), dist.new_group([0]), torch.full((2,), 3.0)
    dispatch.watch(count)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=other)
    assert ([call.group for call in count.seen], tensor.tolist()) == ([world, other], [3, 3])
    dispatch.watch(None)
    dist.all_reduce(tensor)
    assert count.calls == 2


@pytest.mark.usefixtures("world")
def test_each_kind_of_call_is_named_and_sized(dispatch: Dispatch) -> None:
    """A tensor of 8 floats has 32 bytes."""
    count, a, b = Count(), torch.ones(8), torch.empty(8)
    dispatch.watch(count)
    dist.all_reduce(a)
    dist.all_gather([b], a)
    dist.all_gather_into_tensor(b, a)
    dist.reduce_scatter_tensor(b, a)
    dist.broadcast(a, src=0)
    dist.all_to_all_single(b, a)
    dist.reduce(a, dst=0)
    dist.gather(a, [b], dst=0)
    dist.scatter(b, [a], src=0)
    dist.barrier()
    functional.all_reduce(a, "sum", [0]).sum()
    dispatch.watch(None)
    assert [(call.op, call.stream, call.bytes) for call in count.seen if call.op != "barrier"] == [
        ("all_reduce", "allreduce", 32),
        ("all_gather", "allgather", 32),
        ("all_gather", "allgather", 32),
        ("reduce_scatter", "reducescatter", 32),
        ("broadcast", "broadcast", 32),
        ("all_to_all", "alltoall", 32),
        ("reduce", "reduce", 32),
        ("gather", "gather", 32),
        ("scatter", "scatter", 32),
        ("all_reduce", "allreduce", 32),
    ]
    assert sum(call.op == "barrier" for call in count.seen) == 1
    assert all(call.peer is None for call in count.seen)


@pytest.mark.usefixtures("world")
def test_calls_below_autograd_and_in_inference_are_seen(dispatch: Dispatch) -> None:
    """DTensor makes its calls below autograd, inside a dispatch of its own."""
    count, tensor = Count(), torch.ones(2)
    dispatch.watch(count)
    with torch._C._AutoDispatchBelowAutograd():
        dist.all_reduce(tensor)
    with torch.inference_mode():
        dist.all_reduce(torch.ones(2))
    dispatch.watch(None)
    assert count.calls == 2


def test_unequal_parts_of_an_all_to_all_have_their_sizes(world: dist.ProcessGroup) -> None:
    """4-byte floats, 2 in each row."""

    def sent(given: list[Any], *rest: Any) -> list[int] | None:
        return Called("all_to_all", "alltoall", world, given, rest).peer_bytes

    output, rows = torch.empty(4, 2), torch.ones(4, 2)
    assert sent([output, rows], [2, 2], [3, 1]) == [24, 8]
    assert sent([output, rows], [2, 2], [2, 2]) is None
    assert sent([output, rows], [], []) is None
    assert sent([[output], [torch.ones(1), torch.ones(5)]]) == [4, 20]


def test_without_a_watcher_calls_go_where_they_went_before(
    world: dist.ProcessGroup, dispatch: Dispatch
) -> None:
    """What was registered stays: a thread may be on its way to it."""
    del world
    for _ in range(2):
        dispatch.watch(count := Count())
        dispatch.watch(None)
        tensor = torch.full((2,), 3.0)
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        assert (count.calls, tensor.tolist()) == (0, [3, 3])


def test_a_kernel_of_the_programs_own_stays(world: dist.ProcessGroup, dispatch: Dispatch) -> None:
    own: list[int] = []

    def kernel(keys: Any, *args: Any) -> Any:
        own.append(1)
        return torch.ops.c10d.allreduce_.default.redispatch(keys & _BELOW, *args)

    library = torch_library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    try:
        for watcher in (count := Count(), None):
            dispatch.watch(watcher)
            dist.all_reduce(torch.ones(2))
            assert dispatch.taken == {"all_reduce"}
    finally:
        library._destroy()
    assert (len(own), count.calls) == (2, 0)


def test_what_the_watcher_raises_is_raised_by_the_call(world: dist.ProcessGroup, dispatch: Dispatch) -> None:
    class Broken(Count):
        def noted(self, *args: Any) -> Any:
            raise ValueError("mine")

    broken, count = Broken(), Count()
    dispatch.watch(broken)
    with pytest.raises(ValueError, match="mine"):
        dist.all_reduce(torch.ones(2))
    dispatch.watch(count)
    dist.all_reduce(torch.ones(2))
    assert count.calls == 1


THREADS = """
import ctypes, sys, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from aorta.instrument.dispatch import Dispatch

class Watcher:
    def noted(self, call, begin):
        begin()

libc = ctypes.PyDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
dispatch, watcher, tensor, done = Dispatch(), Watcher(), torch.ones(2), []
sys.setswitchinterval(5)  # a thread that goes into C++ hands the interpreter over, and nobody takes it away
for _ in range(40):
    dispatch.watch(watcher)
    user = threading.Thread(target=lambda: done.append(dist.all_reduce(tensor)))
    user.start()
    until = time.perf_counter() + 0.005
    while time.perf_counter() < until:
        pass  # by now it waits for the interpreter, on its way to us
    dispatch.watch(None)
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
