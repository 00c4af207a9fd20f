"""The groups in which ranks exchange: their parallel dimension, and what each takes per step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct, field, structs

from aorta.artefacts.mesh import Dimension, Mesh, MeshDimension, MeshGroup
from aorta.averages import fmean, median
from aorta.metrics.calls import RING, SEND_RECV, pair_of
from aorta.metrics.collectives import Matched, MatchedCollectives
from aorta.metrics.dimensions import dimension_of
from aorta.units import NS_PER_MS

SLOW_GROUP = 2.0
"""A group has a slow link if it takes at least this many times as long as its dimension's other groups for
as many bytes.
"""
_ALIKE = 1.2
_TOLD: dict[str, Dimension] = {SEND_RECV: "pipeline", RING: "sequence", "all_to_all": "expert"}
"""Operations that only one dimension has."""
NOT_NAMED = "not named"
"""Name of the group of calls whose group has none."""


class _Group(Struct):
    ranks: set[int] = field(default_factory=set)
    operations: set[str] = field(default_factory=set)
    transfer_ns: int = 0
    bytes: int = 0
    sized: bool = True
    calls: int = 0


def shown_mesh(mesh: Mesh | None, groups: Sequence[MeshGroup]) -> Mesh | None:
    """Returns stages and groups; None where all ranks exchange in one group that tells nothing more.

    A dimension's name and sizes per peer tell more.

    Args:
        mesh: by the operations. None if they are not known.
        groups: in which ranks exchange.
    """
    groups = _whole_rings(groups)
    if mesh is None:
        several = len(groups) > 1 or any(
            dimension_of(group.name) or group.bytes_to is not None for group in groups
        )
        return Mesh(groups=[*groups], dimensions=dimensions_of(groups)) if several else None
    known = _joined(mesh.groups, groups)
    made: Mesh = structs.replace(mesh, groups=known, dimensions=dimensions_of(known))
    return made


def _whole_rings(groups: Sequence[MeshGroup]) -> list[MeshGroup]:
    """Returns the groups with the pairs of each ring as one: a rank exchanges with both of its neighbours."""
    rings: dict[str, list[MeshGroup]] = defaultdict(list)
    for group in groups:
        if pair_of(group.name) is not None:
            rings[group.name.rpartition(" ")[0]].append(group)
    return [group for group in groups if pair_of(group.name) is None] + [
        MeshGroup(
            name=f"{name} ring",
            dimension=pairs[0].dimension,
            ranks=(ranks := sorted({rank for pair in pairs for rank in pair.ranks})),
            ms_per_step=_shared([pair.ms_per_step for pair in pairs], len(ranks)),
            bytes_per_step=_shared([pair.bytes_per_step for pair in pairs], len(ranks)),
        )
        for name, pairs in rings.items()
    ]


def _shared(values: Sequence[float | None], ranks: int) -> float | None:
    """Returns the mean per rank of what pairs take per member. None if one of them is not known."""
    known = [value for value in values if value is not None]
    return 2.0 * sum(known) / ranks if len(known) == len(values) else None


def _joined(planned: Sequence[MeshGroup], measured: Sequence[MeshGroup]) -> list[MeshGroup]:
    """Returns the groups in which ranks were seen to exchange; places in the pipeline tell the others.

    Args:
        planned: by stages and replicas. Only the pipelines among them are certain: two replicas in one group
            may as well be tensor ranks.
        measured: by the calls.
    """
    of_calls = [group for group in measured if group.dimension != "pipeline"]
    sizes = {frozenset(group.ranks): group.bytes_per_step for group in measured}
    kept = [group for group in planned if not of_calls or group.dimension == "pipeline"]
    found = of_calls + [
        structs.replace(group, bytes_per_step=sizes.get(frozenset(group.ranks))) for group in kept
    ]
    return sorted(found, key=lambda group: (group.dimension, group.ranks))


def groups_in(collectives: MatchedCollectives | str, steps: int) -> tuple[MeshGroup, ...]:
    """Returns the groups in which ranks exchange, as `groups_of`. Empty if collectives cannot be matched."""
    return () if isinstance(collectives, str) else tuple(groups_of(collectives.matched, steps))


def groups_of(matched: Sequence[Matched], steps: int) -> list[MeshGroup]:
    """Returns the groups of these collectives.

    Both ranks of a send are a group, joined along a pipeline. Around a ring they stay apart, so that a slow
    link can be told.

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
    return f"{name.rpartition(' ')[0]} sends".strip() if ends is not None else name or NOT_NAMED


def _by_operations(group: _Group, every: dict[str, _Group]) -> Dimension:
    """Returns the dimension that calls tell: sends are a pipeline's, sends around a ring those of long
    sequences, and all-to-all is the experts'.

    Of ranks that follow one another, and of ranks that lie apart, the first are tensor groups by the usual
    order. Gathering and scattering is data parallelism with sharded weights.
    """
    if len(group.operations) == 1 and group.operations <= _TOLD.keys():
        return _TOLD[next(iter(group.operations))]
    if {"all_gather", "reduce_scatter"} <= group.operations:
        return "data"
    others = [one for one in every.values() if len(one.ranks) > 1 and not one.operations <= {SEND_RECV, RING}]
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
    """Returns the group that takes much longer than the other groups of its dimension for the same bytes,
    and how many times as long. None if there is no such group, or no group to compare it with.
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
