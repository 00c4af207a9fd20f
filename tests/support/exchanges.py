"""Steps of ranks that exchange, and their collectives matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aorta.artefacts.steps import DecodedStep
from aorta.metrics.collectives import MatchedCollectives, match_collectives
from aorta.units import NS_PER_MS
from tests.support.steps import step
from tests.support.synthetic import RunSpec, simulate

Records = Mapping[int, Sequence[DecodedStep]]


def matched(records: Records, clocks: dict[int, str] | None = None) -> MatchedCollectives:
    """The collectives of `records`; all ranks on one clock if `clocks` does not say otherwise."""
    found = match_collectives(records, clocks or dict.fromkeys(records, "node1"))
    assert isinstance(found, MatchedCollectives), found
    return found


def late_loader(
    *,
    load: int = 30,
    host: int = 5,
    transfers: Sequence[int] = (10, 10, 10),
    ahead_ms: int = 0,
) -> dict[int, list[DecodedStep]]:
    """A step a transfer, in ms: rank 1 loads for `load`, both compute for 20, exchange, and do host work.

    Rank 0 comes to the exchange `load` before rank 1, on node2, whose clock is ahead.
    """
    records: dict[int, list[DecodedStep]] = {0: [], 1: []}
    start = 0
    for number, transfer in enumerate(transfers):
        late = start + load
        end = late + 20 + transfer
        whole = (start, end + host)
        records[0].append(step(number, whole, compute=[(start, start + 20)], collectives=[(start + 20, end)]))
        records[1].append(
            step(
                number,
                whole,
                rank=1,
                data=[(start, late)],
                compute=[(late, late + 20)],
                collectives=[(late + 20, end)],
                host="node2",
                ahead_ms=ahead_ms,
            )
        )
        start = end + host
    return records


def simulated(spec: RunSpec) -> dict[int, list[DecodedStep]]:
    """The steps of a simulated run, in whole ms."""
    return {
        rank: [
            step(
                number,
                (item.start // NS_PER_MS, item.end // NS_PER_MS),
                rank=rank,
                data=[(item.start // NS_PER_MS, item.data_end // NS_PER_MS)],
                compute=[(a // NS_PER_MS, b // NS_PER_MS) for a, b in item.compute],
                collectives=[
                    (a // NS_PER_MS, b // NS_PER_MS) for a, b in zip(item.entries, item.ends, strict=True)
                ],
            )
            for number, item in enumerate(steps)
        ]
        for rank, steps in enumerate(simulate(spec))
    }
