"""The groups in which ranks exchange: their parallel dimension, and what each takes per step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from msgspec import Struct, field, structs

from aorta.artefacts.mesh import Dimension, Mesh, MeshDimension, MeshGroup
from aorta.metrics.calls import SEND_RECV
from aorta.metrics.collectives import Matched, MatchedCollectives
from aorta.metrics.traced_mesh import pair_of
from aorta.units import NS_PER_MS

_WORDS: tuple[tuple[Dimension, frozenset[str]], ...] = (
    ("data", frozenset(("data", "dp", "ddp", "fsdp", "hsdp", "shard", "replicate", "dpcp"))),
    ("pipeline", frozenset(("pipeline", "pp", "pipe"))),
    ("tensor", frozenset(("tensor", "tp"))),
    ("sequence", frozenset(("sequence", "context", "sp", "cp", "ulysses", "ring"))),
    ("expert", frozenset(("expert", "experts", "ep", "moe"))),
)
"""Words in the names of groups: those of DeviceMesh, Megatron and torchtitan. The first one counts."""
SLOW_GROUP = 2.0
"""A group has a slow link if it takes so many times what others of its dimension take for as many bytes."""
_ALIKE = 1.2


def dimension_of(name: str) -> Dimension | None:
    """Returns the dimension that a group's name says; None: it says none."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return next((dimension for dimension, known in _WORDS if words & known), None)


class _Group(Struct):
    ranks: set[int] = field(default_factory=set)
    operations: set[str] = field(default_factory=set)
    transfer_ns: int = 0
    bytes: int = 0
    sized: bool = True
    calls: int = 0


def shown_mesh(mesh: Mesh | None, groups: Sequence[MeshGroup]) -> Mesh | None:
    """Returns stages and groups; None where all ranks exchange in one group without a dimension's name.

    Args:
        mesh: by the operations; None: they are not known.
        groups: in which ranks exchange.
    """
    if mesh is None:
        several = len(groups) > 1 or any(dimension_of(group.name) for group in groups)
        return Mesh(groups=[*groups], dimensions=dimensions_of(groups)) if several else None
    measured = {frozenset(group.ranks): group.bytes_per_step for group in groups}
    known = [
        structs.replace(group, bytes_per_step=measured.get(frozenset(group.ranks))) for group in mesh.groups
    ]
    made: Mesh = structs.replace(mesh, groups=known, dimensions=dimensions_of(known))
    return made


def groups_in(collectives: MatchedCollectives | str, steps: int) -> tuple[MeshGroup, ...]:
    """Returns the groups in which ranks exchange, as `groups_of`; empty: collectives cannot be matched."""
    return () if isinstance(collectives, str) else tuple(groups_of(collectives.matched, steps))


def groups_of(matched: Sequence[Matched], steps: int) -> list[MeshGroup]:
    """Returns the groups of these collectives; both ranks of a send are a group, joined along a pipeline.

    Args:
        matched: the collectives.
        steps: the number of steps that they are of.
    """
    found: dict[str, _Group] = defaultdict(_Group)
    for item in matched:
        group = found[_name(item)]
        group.ranks |= set(item.ranks)
        group.operations.add(item.op)
        latest = int(item.entry.max())
        group.transfer_ns += sum(max(int(end) - latest, 0) for end in item.end.tolist())
        group.bytes += (item.bytes or 0) * len(item.ranks)
        group.sized &= item.bytes is not None
        group.calls += 1
    made = []
    for name in sorted(found):
        group = found[name]
        members = max(len(group.ranks) * steps, 1)
        made.append(
            MeshGroup(
                name=name,
                dimension=dimension_of(name) or _by_operations(group, found),
                ranks=sorted(group.ranks),
                ms_per_step=group.transfer_ns / members / NS_PER_MS,
                bytes_per_step=group.bytes / members if group.sized else None,
            )
        )
    return made


def _name(item: Matched) -> str:
    """Returns the name of the group; of a send and its receive without the pair."""
    name = item.key[1]
    ends = pair_of(name) if item.op == SEND_RECV else None
    return f"{name.rpartition(' ')[0]} sends".strip() if ends is not None else name or "not named"


def _by_operations(group: _Group, every: dict[str, _Group]) -> Dimension:
    """Returns the dimension that calls tell: sends are a pipeline's, and all-to-all is the experts'.

    Of ranks that follow one another, and of ranks that lie apart, the first are tensor groups by the usual
    order. Gathering and scattering is data parallelism with sharded weights.
    """
    if group.operations == {SEND_RECV}:
        return "pipeline"
    if group.operations == {"all_to_all"}:
        return "expert"
    if {"all_gather", "reduce_scatter"} <= group.operations:
        return "data"
    others = [one for one in every.values() if len(one.ranks) > 1 and one.operations != {SEND_RECV}]
    world = {rank for one in others for rank in one.ranks}
    if len(group.ranks) < len(world):
        apart = [one for one in others if not _follow(one.ranks)]
        if _follow(group.ranks):
            return "tensor" if apart else "unknown"
        return (
            "data" if any(_follow(one.ranks) and len(one.ranks) < len(world) for one in others) else "unknown"
        )
    return "data" if group.operations == {"all_reduce"} else "unknown"


def _follow(ranks: set[int]) -> bool:
    return max(ranks) - min(ranks) + 1 == len(ranks)


def dimensions_of(groups: Sequence[MeshGroup]) -> list[MeshDimension]:
    """Returns time and bytes per parallel dimension, the mean over its groups."""
    found = []
    for dimension in dict.fromkeys(group.dimension for group in groups):
        mine = [group for group in groups if group.dimension == dimension]
        times = [group.ms_per_step for group in mine if group.ms_per_step is not None]
        sizes = [group.bytes_per_step for group in mine if group.bytes_per_step is not None]
        found.append(
            MeshDimension(
                dimension=dimension,
                groups=len(mine),
                ms_per_step=fmean(times) if times else None,
                bytes_per_step=fmean(sizes) if sizes and len(sizes) == len(mine) else None,
            )
        )
    return found


def slow_group(groups: Sequence[MeshGroup]) -> tuple[MeshGroup, float] | None:
    """Returns the group that takes much longer than the others of its dimension for the same bytes, and how
    many times as long; None: there is none, or nothing to compare it with.
    """
    worst: tuple[MeshGroup, float] | None = None
    for group in groups:
        others = [
            one.ms_per_step
            for one in groups
            if one is not group
            and (one.dimension, len(one.ranks)) == (group.dimension, len(group.ranks))
            and one.ms_per_step
            and _same_bytes(one, group)
        ]
        if not others or not group.ms_per_step:
            continue
        ratio = group.ms_per_step / median(others)
        if ratio >= SLOW_GROUP and (worst is None or group.ms_per_step > (worst[0].ms_per_step or 0.0)):
            worst = group, ratio
    return worst


def _same_bytes(one: MeshGroup, other: MeshGroup) -> bool:
    a, b = one.bytes_per_step, other.bytes_per_step
    return a is None or b is None or max(a, b) <= _ALIKE * min(a, b)
