"""Calls of `torch.distributed` on every process group, seen where torch's dispatcher hands them to a backend.

Every call goes through there, from DDP's reducer in C++, a functional collective of DTensor, or a program in
Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import library as torch_library

from aorta.instrument.waits import uncompiled

KINDS = {
    "allreduce_": ("all_reduce", "allreduce"),
    "allreduce_coalesced_": ("all_reduce", "allreduce"),
    "allgather_": ("all_gather", "allgather"),
    "_allgather_base_": ("all_gather", "allgather"),
    "allgather_coalesced_": ("all_gather", "allgather"),
    "allgather_into_tensor_coalesced_": ("all_gather", "allgather"),
    "reduce_scatter_": ("reduce_scatter", "reducescatter"),
    "_reduce_scatter_base_": ("reduce_scatter", "reducescatter"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "reducescatter"),
    "broadcast_": ("broadcast", "broadcast"),
    "alltoall_": ("all_to_all", "alltoall"),
    "alltoall_base_": ("all_to_all", "alltoall"),
    "send": ("send", "p2p"),
    "recv_": ("recv", "p2p"),
    "recv_any_source_": ("recv", "p2p"),
    "barrier": ("barrier", "barrier"),
    "monitored_barrier_": ("barrier", "barrier"),
    "reduce_": ("reduce", "reduce"),
    "gather_": ("gather", "gather"),
    "scatter_": ("scatter", "scatter"),
}
"""Operators of `c10d` to the operation and the stream of a record; others keep their own names."""

_KEY = "BackendSelect"
"""Torch passes this key on every device, also below autograd, where DTensor makes its calls."""
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


class Called(NamedTuple):
    """One call: its kind and its arguments."""

    op: str
    stream: str
    group: dist.ProcessGroup
    given: Sequence[Any]
    """Arguments ahead of the group: tensors, lists of tensors, and lists of lists."""
    rest: Sequence[Any]
    """Arguments behind the group."""

    @property
    def bytes(self) -> int:
        """Bytes of the largest argument: the output of an all-gather, the input of a reduce-scatter."""
        return max((_bytes(value) for value in self.given), default=0)

    @property
    def peer(self) -> int | None:
        """Global rank of the other side of a send or a receive. None means any, or all of the group."""
        if self.stream != "p2p" or len(self.rest) < 2:
            return None
        return dist.get_global_rank(self.group, self.rest[0])

    @property
    def storages(self) -> frozenset[int]:
        """Addresses of the memory that it was given first, where results go."""
        found = _tensors(self.given[0]) if self.given else ()
        return frozenset(address for one in found if (address := storage_of(one)) is not None)

    @property
    def peer_bytes(self) -> list[int] | None:
        """Bytes to each rank of the group, of an all-to-all whose parts differ; None: of equal parts."""
        if self.stream != "alltoall":
            return None
        sent = self.given[-1]
        if isinstance(sent, torch.Tensor):
            rows, splits = max(sent.shape[0], 1) if sent.dim() else 1, self.rest[1]
            parts = [sent.nbytes // rows * one for one in splits]
        else:
            parts = [one.nbytes for one in sent]
        return parts if len(set(parts)) > 1 else None


class Watcher(Protocol):
    """Asked about each call."""

    def noted(self, call: Called, begin: Callable[[], Any]) -> None:
        """Gets a call and a function that begins it. The function returns the work, or None where the result
        is waited for in the call. It has to be called once.
        """


class Dispatch:
    """Asks a watcher about each call of `torch.distributed`.

    Registrations are never removed, because a thread of the program may be about to call them. torch ends a
    call that arrives after its target was removed. Without a watcher, each call costs a call of Python's.
    """

    def __init__(self) -> None:
        self._watcher: Watcher | None = None
        self._library: torch_library.Library | None = None
        self._lock = threading.Lock()
        self.taken: frozenset[str] = frozenset()
        """Operations for which the program has a kernel of its own: it stays, and nothing is seen."""

    def watch(self, watcher: Watcher | None) -> None:
        """Set the watcher that is asked, or none (None). Call it between steps."""
        with self._lock:
            self._watcher = watcher
            if watcher is not None and self._library is None:
                self._library = torch_library.Library("c10d", "IMPL")
                self.taken = frozenset(
                    op for operator in _operators() for op in self._register(self._library, operator)
                )

    def watched_by(self, watcher: Watcher) -> bool:
        """Returns True if `watcher` is the one that is asked."""
        return self._watcher is watcher

    def _register(self, library: torch_library.Library, operator: str) -> Iterator[str]:
        """Register one operator. Yields its operation where the program has a kernel of its own."""
        name = f"c10d::{operator}"
        below = getattr(torch.ops.c10d, operator).default._handle.redispatch_boxed
        called = partial(self._called, KINDS.get(operator), operator, below, _place_of_group(name))
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY):
            yield KINDS.get(operator, (operator.strip("_"), ""))[0]
            return
        library.impl(operator, called, _KEY, with_keyset=True)

    def _called(
        self,
        kind: tuple[str, str] | None,
        operator: str,
        below: Callable[..., Any],
        at: int,
        keys: Any,
        *args: Any,
    ) -> Any:
        watcher = self._watcher
        if watcher is None:
            return below(keys & _BELOW, *args)
        op, stream = kind or (operator.strip("_"), "other")
        call = Called(op, stream, dist.ProcessGroup.unbox(args[at]), args[:at], args[at + 1 :])
        made: list[Any] = []

        def begin() -> Any:
            # What would have been called without us; torch unlocks the interpreter in it.
            made.append(below(keys & _BELOW, *args))
            return _work(made[0])

        watcher.noted(call, begin)
        return made[0]


def _operators() -> list[str]:
    """Names of the operators of this torch that take a process group."""
    names = [
        name.removeprefix("c10d::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("c10d::")
    ]
    return [name for name in sorted(names) if _place_of_group(f"c10d::{name}") >= 0]


def _place_of_group(name: str) -> int:
    """Returns where the process group is among the arguments; -1: the operator takes none."""
    overloads = torch._C._jit_get_schemas_for_operator(name)
    names = [argument.name for argument in overloads[0].arguments] if overloads else []
    return names.index("process_group") if "process_group" in names else -1


def _work(made: Any) -> Any:
    """Returns the work among what an operator returned. None if there is none."""
    boxed = made[-1] if isinstance(made, tuple | list) and made else made
    return dist.Work.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, list):
        return []
    return [tensor for one in value for tensor in _tensors(one)]


def _bytes(value: Any) -> int:
    """Bytes of a tensor, a list of them, or a list of lists."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, list) else 0


def storage_of(tensor: Any) -> int | None:
    """Returns the address of a tensor's memory. None if it has none, as while a compiler traces."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


uncompiled(Called, Dispatch, _work, _tensors, _bytes, storage_of)

DISPATCH = Dispatch()
"""Torch has one dispatcher."""
