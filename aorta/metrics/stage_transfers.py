"""The computation that each send and receive between stages belongs to, and so which two are one transfer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from aorta.artefacts.operations import Ints, OperationRole, Operations, backwards


class Transfers(Struct):
    """Sends and receives of a timeline that names no peers."""

    work: dict[int, int] = field(default_factory=dict)
    """Row of a send or receive to the row of the computation that makes or needs its data."""
    idle: set[int] = field(default_factory=set)
    """Calls at the ends of the model, which exchange nothing."""
    pairs: list[list[int]] = field(default_factory=list)
    """A send and its receive."""
    alone: int = 0
    """Sends and receives without another side."""
    unknown: set[int] = field(default_factory=set)
    """Rows of which nothing tells the computation: as many calls as computations are needed."""


def transfers_of(operations: Operations, rows: Sequence[Ints], lane: Ints) -> Transfers:
    """Returns the transfers between stages.

    Both sides name a transfer by direction, receiving place in the model and microbatch. Place and microbatch
    are those of the computation: the first send of a rank is of the first computation of its direction, and
    so on.

    Args:
        operations: all of them.
        rows: of each worker and step, by start.
        lane: tensor-parallel rank of each row.
    """
    found, role = Transfers(), operations.role
    back = np.array([backwards(name) for name in operations.kinds])[operations.kind]
    sides: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for mine in rows:
        for gradients, direction in ((False, OperationRole.FORWARD), (True, OperationRole.BACKWARD)):
            compute = mine[role[mine] == direction]
            places, numbers = _places(operations, compute), _numbers(operations, compute)
            for transfer in (OperationRole.SEND, OperationRole.RECEIVE):
                moves = mine[(role[mine] == transfer) & (back[mine] == gradients)]
                if not len(moves):
                    continue
                ahead = (1 if transfer == OperationRole.SEND else 0) * (-1 if gradients else 1)
                arrives = [place + ahead for place in places]
                inside = _inside(arrives, places, _model(operations), gradients, transfer)
                matched = _matched(moves, compute, inside, transfer)
                if matched is None:
                    found.unknown.update(moves.tolist())
                    continue
                for move, at in matched:
                    found.work[move] = int(compute[at])
                    if not inside[at]:
                        found.idle.add(move)
                        continue
                    row, to = int(compute[at]), (int(gradients), arrives[at], numbers[at])
                    where = int(operations.step[row]), int(operations.replica[row]), int(lane[row])
                    name: tuple[int, ...] = (*where, *to)
                    sides[name].append(move)
    for both in sides.values():
        one_each = len(both) == 2 and len({int(role[row]) for row in both}) == 2
        found.pairs += [both] if one_each else []
        found.alone += 0 if one_each else len(both)
    return found


def _model(operations: Operations) -> int:
    """Returns how many places the model has: chunks by stages."""
    known = operations.chunk[operations.chunk >= 0]
    chunks = max(operations.sizes.virtual or 1, int(known.max(initial=0)) + 1)
    return chunks * max(operations.stages, 1)


def _places(operations: Operations, compute: Ints) -> list[int]:
    chunk = np.maximum(operations.chunk[compute], 0)
    places: list[int] = (chunk * max(operations.stages, 1) + operations.stage[compute]).tolist()
    return places


def _numbers(operations: Operations, compute: Ints) -> list[int]:
    """Returns the microbatch of each computation; where one is not recorded, its turn in its chunk."""
    numbers = operations.microbatch[compute]
    if (numbers >= 0).all():
        known: list[int] = numbers.tolist()
        return known
    seen: dict[int, int] = defaultdict(int)
    turns = []
    for chunk in operations.chunk[compute].tolist():
        turns.append(seen[chunk])
        seen[chunk] += 1
    return turns


def _inside(
    arrives: Sequence[int], places: Sequence[int], model: int, gradients: bool, transfer: OperationRole
) -> list[bool]:
    """Tells for each computation whether there is another place to send to or to receive from."""
    if transfer == OperationRole.SEND:
        return [0 <= place < model for place in arrives]
    source = 1 if gradients else -1
    return [0 <= place + source < model for place in places]


def _matched(
    moves: Ints, compute: Ints, inside: Sequence[bool], transfer: OperationRole
) -> list[tuple[int, int]] | None:
    """Returns each call with the place of its computation. None if their numbers do not say."""
    count, chosen = len(moves), [at for at, there in enumerate(inside) if there]
    if count == len(chosen):
        return list(zip(moves.tolist(), chosen, strict=True))
    if count == len(compute):
        return list(zip(moves.tolist(), range(count), strict=True))
    if transfer == OperationRole.RECEIVE and count + 1 == len(compute):
        # The first receive of the first stage is sometimes not recorded: it exchanges nothing.
        return list(zip(moves.tolist(), range(1, count + 1), strict=True))
    return None
