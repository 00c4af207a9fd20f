"""Sends and receives that go around a ring of ranks, and so belong to no pipeline.

With context parallelism each rank sends its keys and values to the next rank and receives those of the rank
before. A pipeline sends activations to the next stage and receives gradients from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from aorta.artefacts.events import Trace
from aorta.metrics.calls import RING, SEND_RECV, pair_of
from aorta.metrics.dimensions import dimension_of

_NO_PIPELINE = ("sequence", "expert", "tensor", "data")


class _Exchange(Struct):
    """The events in which a rank exchanges with one peer."""

    out: set[int] = field(default_factory=set)
    back: set[int] = field(default_factory=set)

    @property
    def one_way(self) -> bool:
        """True if nothing ever comes back, or each call sends and receives at once.

        Of a pipeline, the first exchange in a step goes one way: there are no gradients yet.
        """
        return not self.out or not self.back or self.out == self.back


def with_rings(trace: Trace) -> Trace:
    """Returns the trace with exchanges around a ring told from sends and receives of a pipeline.

    The description of a group tells, where there is one. Otherwise a ring never sends data back to the rank
    from which it receives. Only a rank between two others shows this, because the end of a pipeline may only
    send in a capture without a backward pass.
    """
    table = trace.collectives
    codes = [code for code, name in enumerate(trace.names) if name == SEND_RECV]
    moves = np.isin(table.op, codes)
    if not moves.any() or trace.rank is None:
        return trace
    groups = np.unique(table.group[moves]).tolist()
    rings = [code for code in groups if code >= 0 and dimension_of(trace.names[code]) in _NO_PIPELINE]
    unnamed = [code for code in groups if code >= 0 and dimension_of(trace.names[code]) is None]
    every: dict[str, dict[int, _Exchange]] = defaultdict(lambda: defaultdict(_Exchange))
    for code in unnamed:
        ends = pair_of(trace.names[code])
        if ends is None or trace.rank not in ends:
            continue
        peers, other = every[_name(trace.names[code])], ends[1] if ends[0] == trace.rank else ends[0]
        mine = peers[other].out if ends[0] == trace.rank else peers[other].back
        mine |= set(table.event[moves & (table.group == code)].tolist())
    around = {name for name, peers in every.items() if _goes_around(peers)}
    rings += [code for code in unnamed if _name(trace.names[code]) in around]
    return _renamed(trace, rings) if rings else trace


def _name(pair: str) -> str:
    """Returns the group of a pair of ranks: a rank may be in a ring and in a pipeline."""
    return pair.rpartition(" ")[0]


def _goes_around(peers: dict[int, _Exchange]) -> bool:
    """Returns True if a rank both sends and receives, and nothing comes back from the rank to which it
    sends. A rank that only sends is the end of a chain.
    """
    both = any(one.out for one in peers.values()) and any(one.back for one in peers.values())
    return both and all(one.one_way for one in peers.values())


def _renamed(trace: Trace, groups: Sequence[int]) -> Trace:
    names = trace.names if RING in trace.names else (*trace.names, RING)
    table = trace.collectives
    op = np.where(np.isin(table.group, groups), names.index(RING), table.op)
    return replace(trace, names=names, collectives=replace(table, op=op))
