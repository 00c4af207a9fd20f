"""Programs of simulated meshes: pipelines, tensor groups, experts, rings of context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

from tests.support.interleaved import order_of as interleaved_order
from tests.support.pipelines import order_of
from tests.support.simulated import Op

Share = Callable[[int, int, int, int], float]
"""Factor of a computation by replica, stage, tensor rank and microbatch."""


def equal(*_: int) -> float:
    """All compute for equally long."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A mesh; ranks count tensor ranks first, then replicas, then stages, as Megatron does."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    microbatches: int = 8
    chunks: int = 1

    def rank(self, stage: int, replica: int, lane: int) -> int:
        """The rank at a place."""
        return (stage * self.dp + replica) * self.tp + lane

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.tp


@dataclass(frozen=True, slots=True)
class Costs:
    """µs of a forward pass, transfers and exchanges; a backward pass takes twice a forward."""

    forward: float = 2_000.0
    transfer: float = 50.0
    gradients: float = 800.0
    tensor: float = 100.0
    link: Callable[[int, int], float] = lambda *_: 1.0
    """Factor of a transfer between two ranks."""
    group: Callable[[str], float] = lambda _: 1.0
    """Factor of a group's exchange."""


def passes(schedule: str, stage: int, shape: Shape) -> list[tuple[str, int, int]]:
    """Letter, chunk and microbatch of each pass of a stage."""
    if schedule == "interleaved":
        return interleaved_order(stage, shape.pp, shape.microbatches, shape.chunks)
    if schedule == "zero_bubble":
        return _zero_bubble(stage, shape)
    return [(letter, 0, m) for letter, m in order_of(schedule, stage, shape.pp, shape.microbatches)]


def _zero_bubble(stage: int, shape: Shape) -> list[tuple[str, int, int]]:
    """ZB-H1: weights' passes wait, and fill the drain."""
    found: list[tuple[str, int, int]] = []
    later, delay = [], stage
    for letter, m in order_of("1f1b", stage, shape.pp, shape.microbatches):
        found.append((letter, 0, m))
        if letter == "B":
            later.append(m)
            if len(later) > delay:
                found.append(("W", 0, later.pop(0)))
    return found + [("W", 0, m) for m in later]


def pipeline(
    schedule: str,
    shape: Shape,
    share: Share = equal,
    costs: Costs = Costs(),
    *,
    batched: bool = False,
    labels: bool = False,
) -> dict[int, Sequence[Op]]:
    """Returns the program of each rank.

    Args:
        schedule: `gpipe`, `1f1b`, `interleaved` or `zero_bubble`.
        shape: of the mesh.
        share: factor of each computation.
        costs: of everything.
        batched: a send goes together with the receive that follows it, as Megatron does in steady state.
        labels: passes have names, as torch's schedules give them.
    """
    program: dict[int, Sequence[Op]] = {}
    for stage in range(shape.pp):
        for replica in range(shape.dp):
            for lane in range(shape.tp):
                ops = _stage(schedule, shape, (stage, replica, lane), share, costs, labels=labels)
                program[shape.rank(stage, replica, lane)] = _joined(ops) if batched else ops
    return program


def _stage(
    schedule: str, shape: Shape, place: tuple[int, int, int], share: Share, costs: Costs, *, labels: bool
) -> list[Op]:
    stage, replica, lane = place
    rank, last = shape.rank(*place), shape.pp * shape.chunks - 1
    tensor = tuple(shape.rank(stage, replica, one) for one in range(shape.tp))
    group = f"pp {replica} {lane}"
    ops: list[Op] = []

    def move(kind: str, where: int) -> None:
        peer = shape.rank(where % shape.pp, replica, lane)
        ops.append(Op(kind, costs.transfer * costs.link(min(rank, peer), max(rank, peer)), peer, group))

    for letter, chunk, m in passes(schedule, stage, shape):
        here = chunk * shape.pp + stage
        ahead = 1 if letter == "F" else -1
        before, after = here - ahead, here + ahead
        if letter != "W" and 0 <= before <= last:
            move("recv", before)
        split = any(one == "W" for one, *_ in passes(schedule, stage, shape))
        times = 2 if letter == "B" and not split else 1
        took = costs.forward * times / shape.chunks * share(replica, stage, lane, m)
        name = {"B": "I"}.get(letter, letter) if split else letter
        ops.append(Op(letter, took, label=f"PP:{here}{name}{m}" if labels else ""))
        if shape.tp > 1 and letter != "W":
            name = f"tp {stage} {replica}"
            ops.append(Op("allreduce", costs.tensor * costs.group(name), group=name, ranks=tensor))
        if letter != "W" and 0 <= after <= last:
            move("send", after)
    if shape.dp > 1:
        replicas = tuple(shape.rank(stage, one, lane) for one in range(shape.dp))
        name = f"dp {stage} {lane}"
        ops.append(Op("allreduce", costs.gradients * costs.group(name), group=name, ranks=replicas))
    return [*ops, Op("work", costs.forward / 4)]


def _joined(ops: Sequence[Op]) -> list[Op]:
    """Sends and receives that follow one another are one call."""
    found: list[Op] = []
    for op in ops:
        if op.kind not in ("send", "recv"):
            found.append(op)
        elif found and found[-1].kind == "batch":
            found[-1] = changed(found[-1], calls=(*found[-1].calls, op))
        else:
            found.append(Op("batch", group=op.group, calls=(op,)))
    return found


def ring(
    size: int,
    share: Callable[[int], float] = lambda _: 1.0,
    link: Callable[[int, int], float] = lambda *_: 1.0,
    *,
    layers: int = 4,
    block: float = 400.0,
    transfer: float = 100.0,
) -> dict[int, Sequence[Op]]:
    """Returns the program of a ring of context parallelism: keys and values go round in each layer.

    Args:
        size: ranks of the ring.
        share: factor of each rank's computation.
        link: factor of the transfer between two ranks.
        layers: of the model.
        block: µs of a forward with one rank's keys and values; a backward takes twice as long.
        transfer: µs of a hop.
    """
    program: dict[int, Sequence[Op]] = {}
    for rank in range(size):
        after, before = (rank + 1) % size, (rank - 1) % size
        hop = Op(
            "batch",
            group="cp",
            calls=(
                Op("send", transfer * link(min(rank, after), max(rank, after)), after, "cp"),
                Op("recv", transfer * link(min(rank, before), max(rank, before)), before, "cp"),
            ),
        )
        ops: list[Op] = []
        for letter, times in (("F", 1), ("B", 2)):
            for _ in range(layers):
                attention = Op(letter, times * block * share(rank))
                ops += [attention, *(one for _ in range(size - 1) for one in (hop, attention))]
        program[rank] = [*ops, Op("allreduce", transfer, group="dp", ranks=tuple(range(size)))]
    return program
