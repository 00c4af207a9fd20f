"""FSDP2's collectives on dedicated streams, timed, and the places where its compute waits for them.

All-gather and reduce-scatter are replaced through FSDP2's public `set_custom_all_gather` and
`set_custom_reduce_scatter`. Versions of torch without them, and the all-reduce of hybrid sharding, are
seen like every other call (`aorta.instrument.watching`).

FSDP2 makes the compute stream wait inside its module hooks. Our hooks around these mark the compute stream
before and after. A forward pass that waits for its weights therefore does not count as compute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import AllgatherOptions, ReduceScatterOptions
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from aorta.instrument.collectives import CollectiveRunner, blocking
from aorta.instrument.streams import Mark, current_stream
from aorta.instrument.tape import StreamGate, Tape

log = logging.getLogger(__name__)

# Newer torch renamed these two.
_all_gather: Any = getattr(dist.ProcessGroup, "all_gather_single", None) or dist.ProcessGroup._allgather_base
_reduce_scatter: Any = (
    getattr(dist.ProcessGroup, "reduce_scatter_single", None) or dist.ProcessGroup._reduce_scatter_base
)


_GATHERING, _BESIDE = blocking(AllgatherOptions()), AllgatherOptions()
_SCATTERING: dict[Any, Any] = {}
"""Options by operation, made once, and never changed."""


def _gather_into(output: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Gather plain tensors as `torch.distributed` does, without its checks in every call."""
    work = _all_gather(group, output, shard, _GATHERING)
    if work is not None:
        work.wait()


def _scatter_into(output: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup, op: Any) -> None:
    """Likewise."""
    options = _SCATTERING.get(op) if isinstance(op, dist.ReduceOp.RedOpType) else None
    if options is None:
        options = blocking(ReduceScatterOptions())
        options.reduceOp = op
        if isinstance(op, dist.ReduceOp.RedOpType):  # others have a factor of their own
            _SCATTERING[op] = options
    work = _reduce_scatter(group, output, whole, options)
    if work is not None:
        work.wait()


def _allocate(size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(*size, dtype=dtype, device=device)


class ShardedExchange:
    """Observes one model that `fully_shard` was applied to, root last.

    Args:
        collectives: runs and times.
        compute: gives the stream of the model's compute, on a GPU.
        overlap_gather: weights may come while earlier layers compute. False has each all-gather wait for all
            compute before it: nothing is hidden.
        overlap_scatter: gradients may go while the backward pass goes on. False has compute wait for each
            reduce-scatter.
        compiled: whether the model may be compiled. Moments mean nothing inside a compiled graph, so its
            hooks are then kept out of it, which costs some µs for each.
    """

    def __init__(
        self,
        collectives: CollectiveRunner,
        compute: Callable[[], torch.cuda.Stream | None],
        *,
        overlap_gather: bool = True,
        overlap_scatter: bool = True,
        compiled: bool = True,
    ) -> None:
        self._collectives = collectives
        self._compiled = compiled
        self._compute = compute
        self._overlap_gather = overlap_gather
        self._overlap_scatter = overlap_scatter
        self._straight = overlap_gather and overlap_scatter and collectives.streams.priority is None
        """True if collectives run as FSDP2 would run them without watchers."""
        self.quiet = False
        """True if there are no watchers and collectives run as FSDP2 would run them."""
        self._parts: list[tuple[nn.Module, bool]] = []
        """Modules that are watched; the second value is True for the root."""
        self._hooks: list[RemovableHandle] = []
        self._before: dict[tuple[int, str], tuple[Tape, Mark]] = {}
        self._gathers: dict[int, _Gather] = {}
        self._computed: Mark | None = None
        """Mark of the moment when the block whose gradients are reduced next had computed them."""

    def install(self, model: nn.Module) -> None:
        """Take over the collectives of `model`."""
        parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        ours = [part for part in parts if hasattr(part, "set_custom_all_gather") and not _taken(part)]
        for part in ours:
            self._gathers[id(part)] = gather = _Gather(self)
            part.set_custom_all_gather(gather)  # type: ignore[arg-type]
            part.set_custom_reduce_scatter(_Scatter(self))  # type: ignore[arg-type]
        if len(ours) < len(parts):
            why = (
                "their own collectives or several meshes"
                if hasattr(FSDPModule, "set_custom_all_gather")
                else f"no set_custom_all_gather (torch {torch.__version__})"
            )
            log.info(
                "%d of %d sharded modules have %s: aorta watches the calls of these modules",
                len(parts) - len(ours),
                len(parts),
                why,
            )
            if not (self._overlap_gather and self._overlap_scatter):
                log.warning("for sharded modules that have %s, overlap cannot be switched off", why)
        if self._collectives.on_gpu:
            self._parts = [(part, part is model) for part in parts]
            self.watch(True)

    def watch(self, on: bool) -> None:
        """Set hooks at the places where compute waits, or remove them. Hooks of a model that may be compiled
        stay: without them it would be compiled again.
        """
        self._before.clear()
        self._computed = None
        self.quiet = not on and self._straight
        if on and not self._hooks:
            self._hooks = [hook for part, root in self._parts for hook in self._watch(part, root)]
        elif not on and not self._compiled:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []

    def beside(self, group: dist.ProcessGroup) -> bool:
        """True if a gather can run at the same time as compute; on the host every collective waits."""
        return self._overlap_gather and self._collectives.on_gpu and group.size() > 1

    def open_tape(self) -> Tape | None:
        """The tape of the open step; None without one."""
        return self._collectives.tape()

    # --- the collectives -----------------------------------------------------------------------------------

    def run(
        self, stream: str, op: str, group: dist.ProcessGroup, tensor: torch.Tensor, call: Callable[[], Any]
    ) -> Mark | None:
        """One collective, on FSDP2's own stream for it (it is current here) or, with a priority of the
        user's, on ours beside it. Returns the mark after it.
        """
        metadata = self._collectives.describe(op, group, tensor.numel() * tensor.element_size())
        if self._collectives.streams.priority is None:
            return self._collectives.inline(stream, "fsdp", metadata, call)
        return self._collectives.joined(stream, "fsdp", metadata, call)

    def gather(self, output: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup) -> Mark | None:
        """All ranks' shards into `output`. `shard` is this rank's part of it. Returns the mark after it."""
        if group.size() == 1:
            return None
        compute = self._compute()
        if compute is not None and not self._overlap_gather:
            current_stream(self._collectives.device).wait_stream(compute)
        return self.run(
            "allgather",
            "all_gather",
            group,
            output,
            lambda: _gather_into(output, shard, group),
        )

    def begin_gather(
        self, output: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup
    ) -> tuple[Any, Mark | None]:
        """`gather` of a program's `unshard(async_op=True)` on a GPU: it is called on the stream of compute,
        which goes on. Returns the work to wait for, too.
        """
        shared = self._collectives
        begin = partial(_all_gather, group, output, shard, _BESIDE)
        if shared.tape() is None:
            return begin(), None
        metadata = shared.describe("all_gather", group, output.numel() * output.element_size())
        work, _, end = shared.begun("allgather", "fsdp", metadata, begin)
        return work, end

    def scatter(self, output: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup, op: Any) -> None:
        """The reduced gradients of this rank's shards into `output`."""
        self.before("reducescatter")
        if group.size() == 1:
            output.copy_(whole)
            return
        self.run(
            "reducescatter",
            "reduce_scatter",
            group,
            whole,
            lambda: _scatter_into(output, whole, group, op),
        )
        compute = self._compute()
        if compute is not None and not self._overlap_scatter:
            compute.wait_stream(current_stream(self._collectives.device))

    def before(self, stream: str) -> None:
        """Ahead of a collective: with a reduce-scatter, a block's gradients are ready, and if it is the last
        one, compute ends here.
        """
        tape = self._collectives.tape()
        if tape is None or stream != "reducescatter":
            return
        ready = self._collectives.clock.mark(self._compute())
        tape.gradients_ready = ready
        if self._computed is not None:
            # FSDP2 lets the copy of these gradients wait for the reduce-scatter before.
            tape.gates.append(StreamGate("reducescatter", self._computed, ready))
            self._computed = None

    # --- where compute waits -------------------------------------------------------------------------------

    def _watch(self, part: nn.Module, root: bool) -> Iterator[RemovableHandle]:
        """Set hooks around FSDP2's: prepended hooks run before its own, the others after.

        The root's weights stay until the backward pass has begun: there is no wait to see.
        """
        outside = torch.compiler.disable if self._compiled else _as_it_is
        yield part.register_forward_pre_hook(outside(self._before_weights), prepend=True)
        yield part.register_forward_pre_hook(outside(self._after_weights))
        if not root:
            yield part.register_forward_hook(outside(self._first_on_gradient), prepend=True)
            yield part.register_forward_hook(outside(self._last_on_gradient))

    def _before_weights(self, module: nn.Module, args: Any) -> None:
        del args
        self._open(module, "forward")

    def _after_weights(self, module: nn.Module, args: Any) -> None:
        """The weights are here; and in the backward pass, where a gradient comes to `args`, the block has
        computed.
        """
        if self._collectives.tape() is None:
            return
        self._close(module, "forward")
        for value in _differentiable(args):
            value.register_hook(self._note_computed)

    def _first_on_gradient(self, module: nn.Module, args: Any, output: Any) -> None:
        """Between this and the next FSDP2 brings the weights back, as the gradient of the output arrives."""
        del args
        if self._collectives.tape() is None:
            return
        for value in _differentiable(output):
            value.register_hook(lambda gradient: self._open(module, "backward"))  # noqa: ARG005

    def _last_on_gradient(self, module: nn.Module, args: Any, output: Any) -> None:
        del args
        if self._collectives.tape() is None:
            return
        for value in _differentiable(output):
            value.register_hook(lambda gradient: self._close(module, "backward"))  # noqa: ARG005

    def _open(self, module: nn.Module, way: str) -> None:
        tape = self._collectives.tape()
        if tape is not None:
            self._before[id(module), way] = tape, self._collectives.clock.mark(self._compute())

    def _close(self, module: nn.Module, way: str) -> None:
        """Compute stood still until this block's own weights were there; weights kept from an earlier step
        cause no wait.
        """
        opened, tape = self._before.pop((id(module), way), None), self._collectives.tape()
        # One of an earlier step is left where a hook of the program's own lies between ours.
        if opened is None or tape is None or opened[0] is not tape:
            return
        before = opened[1]
        gather = self._gathers.get(id(module))
        if gather is None:
            tape.gates.append(StreamGate("allgather", before, self._collectives.clock.mark(self._compute())))
        elif gather.done is not None and gather.tape is tape:
            tape.gates.append(StreamGate("allgather", before, gather.done))

    def _note_computed(self, gradient: torch.Tensor) -> None:
        del gradient
        if self._collectives.tape() is not None:
            self._computed = self._collectives.clock.mark(self._compute())


_USUAL = ("DefaultAllGather", "DefaultReduceScatter", "_Gather", "_Scatter")


def _taken(part: FSDPModule) -> bool:
    """True if the program chose a module's collectives or their memory, or if the module has several meshes:
    FSDP2 then accepts none from the recorder.
    """
    state: Any = part._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # an older torch
        groups = [one for one in [state._fsdp_param_group] if one is not None]
    chosen = [
        getattr(one, name, None) for one in groups for name in ("_all_gather_comm", "_reduce_scatter_comm")
    ]
    return len(groups) > 1 or any(type(one).__name__ not in _USUAL for one in chosen if one is not None)


_FLAT = (torch.Tensor, bool, int, float, str, type(None))


def _as_it_is(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


def _differentiable(value: Any) -> list[torch.Tensor]:
    leaves: Any = (value,) if isinstance(value, torch.Tensor) else value
    if not isinstance(leaves, tuple) or any(not isinstance(leaf, _FLAT) for leaf in leaves):
        leaves = tree_leaves(value)  # in Python, and a block seldom takes more than a few tensors
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


class _Gather:
    """FSDP2's interface for all-gathers."""

    def __init__(self, exchange: ShardedExchange) -> None:
        self._exchange = exchange
        self.allocate = _allocate
        self.done: Mark | None = None
        """After this block's newest all-gather, on `tape`."""
        self.tape: Tape | None = None

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        if async_op and self._exchange.beside(group):
            self.tape = self._exchange.open_tape()
            work, self.done = self._exchange.begin_gather(output_tensor, input_tensor, group)
            return work
        if self._exchange.quiet and group.size() > 1:
            _gather_into(output_tensor, input_tensor, group)
            return None
        self.tape = self._exchange.open_tape()
        self.done = self._exchange.gather(output_tensor, input_tensor, group)
        return None


class _Scatter:
    """FSDP2's interface for reduce-scatters."""

    def __init__(self, exchange: ShardedExchange) -> None:
        self._exchange = exchange
        self.allocate = _allocate

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        del async_op
        if self._exchange.quiet and group.size() > 1:
            _scatter_into(output_tensor, input_tensor, group, op)
            return
        self._exchange.scatter(output_tensor, input_tensor, group, op)
